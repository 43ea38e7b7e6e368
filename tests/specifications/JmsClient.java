import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * A client of JMS in a process of its own: Qpid JMS, told line by line what to do. Each line is a
 * command with its words; each answer is a line that begins with "ok" or "error". It is compiled
 * by Janino, which knows no lambdas.
 */
public class JmsClient {
    private Connection connection;
    private Session session;
    private Map producers = new HashMap();
    private Map consumers = new HashMap();

    public static void main(String[] arguments) throws Exception {
        JmsClient client = new JmsClient();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        String line = lines.readLine();
        while (line != null) {
            String answer;
            try {
                answer = "ok " + client.take(line.split(" "));
            } catch (Exception error) {
                answer = "error " + error.getClass().getSimpleName() + " " + error.getMessage();
            }
            System.out.println(answer.replace('\n', ' '));
            System.out.flush();
            line = lines.readLine();
        }
    }

    private String take(String[] words) throws Exception {
        String what = words[0];
        if (what.equals("connect")) {
            return this.connect(words);
        } else if (what.equals("session")) {
            return this.begin(words[1].equals("transacted"));
        } else if (what.equals("send")) {
            return this.send(words[1], words[2]);
        } else if (what.equals("octets")) {
            return this.octets(words[1], Integer.parseInt(words[2]));
        } else if (what.equals("receive")) {
            return this.receive(words[1], Long.parseLong(words[2]));
        } else if (what.equals("describe")) {
            return this.describe(words[1]);
        } else if (what.equals("commit")) {
            this.session.commit();
        } else if (what.equals("rollback")) {
            this.session.rollback();
        } else if (what.equals("recover")) {
            this.session.recover();
        } else if (what.equals("transactions")) {
            int count = Integer.parseInt(words[1]);
            return this.transactions(count, words[2], words[3], Integer.parseInt(words[4]));
        } else if (what.equals("close")) {
            this.connection.close();
        } else if (what.equals("die")) {
            Runtime.getRuntime().halt(9);
        } else {
            throw new IllegalArgumentException(what);
        }
        return "";
    }

    private String connect(String[] words) throws JMSException {
        JmsConnectionFactory factory = new JmsConnectionFactory(words[1]);
        if (words.length > 2) {
            this.connection = factory.createConnection(words[2], words[3]);
        } else {
            this.connection = factory.createConnection();
        }
        this.connection.start();
        return this.connection.getMetaData().getJMSProviderName();
    }

    private String begin(boolean transacted) throws JMSException {
        int mode = transacted ? Session.SESSION_TRANSACTED : Session.AUTO_ACKNOWLEDGE;
        this.session = this.connection.createSession(transacted, mode);
        this.producers.clear();
        this.consumers.clear();
        return "";
    }

    private MessageProducer producer(String queue) throws JMSException {
        if (!this.producers.containsKey(queue)) {
            boolean anonymous = queue.equals("*");
            this.producers.put(
                queue,
                this.session.createProducer(anonymous ? null : this.session.createQueue(queue)));
        }
        return (MessageProducer) this.producers.get(queue);
    }

    private MessageConsumer consumer(String queue) throws JMSException {
        if (!this.consumers.containsKey(queue)) {
            this.consumers.put(
                queue, this.session.createConsumer(this.session.createQueue(queue)));
        }
        return (MessageConsumer) this.consumers.get(queue);
    }

    private String send(String queue, String text) throws JMSException {
        TextMessage message = this.session.createTextMessage(text);
        message.setIntProperty("weight", text.length());
        message.setBooleanProperty("urgent", true);
        message.setJMSType("letter");
        message.setJMSCorrelationID("c-" + text);
        this.producer(queue).send(message);
        return message.getJMSMessageID();
    }

    private String octets(String queue, int length) throws JMSException {
        BytesMessage message = this.session.createBytesMessage();
        byte[] octets = new byte[length];
        for (int i = 0; i < length; i++) {
            octets[i] = (byte) i;
        }
        message.writeBytes(octets);
        this.producer(queue).send(message);
        return message.getJMSMessageID();
    }

    private String receive(String queue, long milliseconds) throws JMSException {
        Message message = this.consumer(queue).receive(milliseconds);
        if (message == null) {
            return "none";
        } else if (message instanceof TextMessage) {
            return ((TextMessage) message).getText();
        } else if (message instanceof BytesMessage) {
            byte[] octets = new byte[(int) ((BytesMessage) message).getBodyLength()];
            ((BytesMessage) message).readBytes(octets);
            for (int i = 0; i < octets.length; i++) {
                if (octets[i] != (byte) i) {
                    return "octet " + i + " is " + octets[i];
                }
            }
            return octets.length + " octets";
        }
        return message.getClass().getName();
    }

    private String describe(String queue) throws JMSException {
        Message message = this.consumer(queue).receive(5000);
        return message.getJMSMessageID() + " " + message.getIntProperty("weight") + " "
            + message.getBooleanProperty("urgent") + " " + message.getJMSType() + " "
            + message.getJMSCorrelationID() + " " + message.getJMSRedelivered();
    }

    private String transactions(int count, String source, String target, int every)
        throws JMSException {
        int done = 0;
        int failed = 0;
        while (done < count) {
            TextMessage message = (TextMessage) this.consumer(source).receive(10000);
            if (message == null) {
                throw new JMSException("nothing came after " + done);
            }
            this.producer(target).send(this.session.createTextMessage(message.getText()));
            if (failed < done / every) {
                this.session.rollback();
                failed++;
            } else {
                this.session.commit();
                done++;
            }
        }
        return done + " " + failed;
    }
}
