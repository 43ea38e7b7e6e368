package txnqueue;

import io.delta.storage.HDFSLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;

/**
 * The log store that Delta takes for local disks, but for one thing: of a log it asks the disk only for
 * the files from the commit on that is wanted. Delta's asks for the size and the time of all of them, at
 * each commit.
 *
 * <p>It writes as Delta's does: drivers with the one and with the other may share tables.
 */
public class TailListingLogStore extends HDFSLogStore {
    /** What keeps a file where its path says: Hadoop's own, and what Hive's jars put in its place. */
    private static final Set<String> AS_NAMED = Set.of(
            "org.apache.hadoop.fs.LocalFileSystem",
            "org.apache.hadoop.hive.ql.io.ProxyLocalFileSystem");

    public TailListingLogStore(Configuration conf) {
        super(conf);
    }

    @Override
    public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
        FileSystem files = path.getFileSystem(conf);
        Path folder = files.makeQualified(path).getParent();
        if (files instanceof LocalFileSystem local
                && AS_NAMED.contains(files.getClass().getName())
                && isOfALog(path)) {
            String[] names = local.pathToFile(folder)
                    .list((in, name) -> name.compareTo(path.getName()) >= 0);
            if (names != null) { // else it is no folder, or cannot be read
                return described(local, folder, names);
            }
        }
        return super.listFrom(path, conf);
    }

    /** Delta lists folders of data through log stores as well, which have folders in them. */
    static boolean isOfALog(Path from) {
        return from.getParent().getName().equals("_delta_log")
                && Character.isDigit(from.getName().charAt(0));
    }

    private static Iterator<FileStatus> described(FileSystem files, Path folder, String[] names)
            throws IOException {
        Arrays.sort(names);
        List<FileStatus> found = new ArrayList<>(names.length);
        for (String name : names) {
            try {
                found.add(files.getFileStatus(new Path(folder, new Path(null, null, name))));
            } catch (FileNotFoundException removed) {
                continue; // since its name was read
            }
        }
        return found.iterator();
    }
}
