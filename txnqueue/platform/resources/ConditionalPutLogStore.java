package txnqueue;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;
import software.amazon.awssdk.services.s3.model.S3Object;

/**
 * A log store of Delta for S3 that any number of drivers may share: a commit is a PUT that S3 itself
 * refuses if the file is there ({@code If-None-Match: *}).
 *
 * <p>It needs hadoop-aws 3.4.2 or newer, and a server that minds the condition, which is tried
 * before the first commit to a bucket. All drivers of a table have to use it.
 *
 * <p>A log is listed from the commit on that is asked for. Delta's own log stores list all of it, a
 * thousand names a request.
 */
public class ConditionalPutLogStore extends HadoopFileSystemLogStore {
    private static final Logger LOG = LoggerFactory.getLogger(ConditionalPutLogStore.class);
    private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
    private static final String CONFLICT = "Status Code: 409";
    private static final int TRIES = 5;
    private static final long PAUSE_MS = 200;
    private static final long BLOCK = 32L << 20; // what Hadoop says of objects, which have no blocks

    /** The file systems, each of one bucket, that were seen to refuse a second PUT. */
    private static final Set<String> PROVEN = ConcurrentHashMap.newKeySet();

    public ConditionalPutLogStore(Configuration conf) {
        super(conf);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
            throws IOException {
        byte[] content = lines(actions);
        FileSystem files = path.getFileSystem(conf);
        if (overwrite) {
            put(files.create(path, true), content);
            return;
        }
        prove(files, path.getParent());
        for (int tried = 1; ; tried++) {
            try {
                putIfAbsent(files, path, content);
                return;
            } catch (IOException error) {
                if (landed(files, path, content, error)) {
                    return;
                }
                // Somebody else's PUT is under way, or has failed since.
                if (tried == TRIES || !String.valueOf(error.getMessage()).contains(CONFLICT)) {
                    throw error;
                }
                pause(tried);
            }
        }
    }

    @Override
    public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
        FileSystem files = path.getFileSystem(conf);
        Path from = files.makeQualified(path);
        if (files instanceof S3AFileSystem s3 && isListedFromAName(s3, from)) {
            try {
                return listed(s3, from);
            } catch (SdkException failed) {
                LOG.info("{} is listed as a whole: {}", from.getParent(), failed.toString());
            }
        }
        return super.listFrom(path, conf);
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration conf) {
        return false; // an object is there when its PUT is complete
    }

    /** S3's directory buckets know neither an order of names nor where to begin. */
    private static boolean isListedFromAName(S3AFileSystem files, Path from) {
        return TailListingLogStore.isOfALog(from)
                && !files.getBucket().endsWith("--x-s3");
    }

    private static Iterator<FileStatus> listed(S3AFileSystem files, Path from) throws IOException {
        Path folder = from.getParent();
        String prefix = files.pathToKey(folder) + "/";
        ListObjectsV2Request request = ListObjectsV2Request.builder()
                .bucket(files.getBucket())
                .prefix(prefix)
                .delimiter("/")
                .startAfter(before(prefix + from.getName()))
                .build();
        List<FileStatus> found = new ArrayList<>();
        S3Client client = files.getS3AInternals().getAmazonS3Client("list a log of Delta");
        for (S3Object object : client.listObjectsV2Paginator(request).contents()) {
            String name = object.key().substring(prefix.length());
            if (name.compareTo(from.getName()) >= 0) {
                long changed = object.lastModified().toEpochMilli();
                Path file = new Path(folder, name);
                found.add(new FileStatus(object.size(), false, 1, BLOCK, changed, file));
            }
        }
        if (found.isEmpty() && !files.exists(folder)) {
            throw new FileNotFoundException("There is no folder " + folder);
        }
        found.sort(Comparator.comparing(status -> status.getPath().getName()));
        return found.iterator();
    }

    /** Write a key before this one and after most that come before it; its last character is ASCII. */
    private static String before(String key) {
        char last = key.charAt(key.length() - 1);
        return key.substring(0, key.length() - 1) + (char) (last - 1);
    }

    /**
     * Look what became of a PUT that failed, or whose answer was lost: the client sends a request
     * again, and is refused by the file that its first one made.
     *
     * @return Whether the file is there and is this one.
     * @throws FileAlreadyExistsException Another one is: this one will not land any more.
     */
    private static boolean landed(FileSystem files, Path path, byte[] content, IOException failed)
            throws IOException {
        byte[] found;
        try (FSDataInputStream stream = files.open(path)) {
            found = stream.readAllBytes();
        } catch (IOException unknown) {
            return false;
        }
        if (Arrays.equals(found, content)) { // Delta's commits have ids
            return true;
        }
        FileAlreadyExistsException error = new FileAlreadyExistsException(path.toString());
        error.initCause(failed);
        throw error;
    }

    private static void pause(int tried) throws InterruptedIOException {
        try {
            Thread.sleep(PAUSE_MS * tried);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while another PUT was under way");
        }
    }

    /** Try once for each bucket whether a PUT is refused if the file is there. */
    private static void prove(FileSystem files, Path folder) throws IOException {
        String bucket = files.getUri().toString();
        if (PROVEN.contains(bucket)) {
            return;
        }
        Path probe = new Path(folder, ".conditional-put-" + UUID.randomUUID());
        try {
            // If the answer to the first one is lost, it is sent again and refused: that tells as much.
            putIfAbsent(files, probe, new byte[] {1});
            putIfAbsent(files, probe, new byte[] {2});
        } catch (RemoteFileChangedException refused) { // and not another failure
            PROVEN.add(bucket);
            return;
        } finally {
            try {
                files.delete(probe, false);
            } catch (IOException kept) {
                LOG.warn("{} could not be removed: {}", probe, kept.toString());
            }
        }
        throw new IOException(
                bucket + " does not mind If-None-Match: a commit could silently replace another"
                        + " driver's, and nothing was written. Use Delta's log store for S3, with one"
                        + " driver at a time.");
    }

    private static void putIfAbsent(FileSystem files, Path path, byte[] content)
            throws IOException {
        FSDataOutputStream stream;
        try {
            FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path);
            builder.recursive();
            builder.overwrite(false);
            builder.must(CONDITIONAL, true);
            stream = builder.build();
        } catch (IllegalArgumentException | UnsupportedOperationException unknown) {
            throw new IOException(
                    files.getUri() + " cannot create a file on the condition that there is none:"
                            + " hadoop-aws 3.4.2 or newer can, for s3a:. Nothing was written.",
                    unknown);
        }
        put(stream, content);
    }

    private static void put(FSDataOutputStream stream, byte[] content) throws IOException {
        try {
            stream.write(content);
        } catch (IOException | RuntimeException error) {
            stream.abort(); // to close it would put what it has so far
            throw error;
        }
        stream.close();
    }

    private static byte[] lines(Iterator<String> actions) {
        ByteArrayOutputStream content = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            content.writeBytes((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
        }
        return content.toByteArray();
    }
}
