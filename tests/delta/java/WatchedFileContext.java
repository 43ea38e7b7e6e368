import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;

/** The same disk for those who open a file context, as Delta does to write its log. */
public class WatchedFileContext extends DelegateToFileSystem {
    public WatchedFileContext(URI uri, Configuration settings)
        throws IOException, URISyntaxException {
        super(uri, new WatchedFileSystem(), settings, "file", false);
    }
}
