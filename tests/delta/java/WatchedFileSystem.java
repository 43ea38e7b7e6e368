import java.io.IOException;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * The local disk, with a note of each call and as long an answer as an object store has; or with
 * one call that fails.
 *
 * Compiled by the tests with Spark's own Janino, which knows neither lambdas nor "<>".
 */
public class WatchedFileSystem extends LocalFileSystem {
    private static final List CALLS = new ArrayList();
    private static final ThreadLocal INSIDE = new ThreadLocal();
    private static volatile long delay = 0;
    private static volatile boolean watching = false;
    private static volatile String spoiledKind = null;
    private static boolean spoilsAfter = false;
    private static int left = 0;
    private static String spoiled = null;

    /** Forget all calls, and take so many milliseconds for each from now on. */
    public static void begin(long milliseconds) {
        synchronized (CALLS) {
            CALLS.clear();
        }
        delay = milliseconds;
        watching = true;
    }

    /** Return a line for each call since begin: kind, path, begin and end in nanoseconds. */
    public static String end() {
        watching = false;
        delay = 0;
        StringBuilder text = new StringBuilder();
        synchronized (CALLS) {
            for (int i = 0; i < CALLS.size(); i++) {
                text.append((String) CALLS.get(i)).append('\n');
            }
        }
        return text.toString();
    }

    /**
     * Let the nth call of a kind fail: before it does anything, or after it has done everything.
     *
     * A kind that no call has ends that.
     */
    public static void spoil(String kind, int nth, boolean after) {
        synchronized (CALLS) {
            spoiledKind = kind;
            left = nth;
            spoilsAfter = after;
            spoiled = null;
        }
    }

    /** Return the path of the call that failed; null if none did. */
    public static String spoiled() {
        synchronized (CALLS) {
            return spoiled;
        }
    }

    /** Count a call, and fail if it is its turn. */
    private static void count(String kind, Path path, boolean after) throws IOException {
        synchronized (CALLS) {
            if (!kind.equals(spoiledKind) || after != spoilsAfter) {
                return;
            }
            left = left - 1;
            if (left != 0) {
                return;
            }
            spoiled = path.toUri().getPath();
        }
        throw new IOException(kind + " of " + path + " failed, as it was told to");
    }

    /** Begin a call: its start, or -1 if it is a part of another one, which is noted already. */
    private static long enter(String kind, Path path) throws IOException {
        if ((!watching && spoiledKind == null) || INSIDE.get() != null) {
            return -1;
        }
        count(kind, path, false);
        INSIDE.set(Boolean.TRUE);
        long began = System.nanoTime();
        try {
            Thread.sleep(delay);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        return began;
    }

    private static void leave(long began, String kind, Path path) throws IOException {
        if (began == -1) {
            return;
        }
        INSIDE.remove();
        if (watching) {
            String line =
                kind + '\t' + path.toUri().getPath() + '\t' + began + '\t' + System.nanoTime();
            synchronized (CALLS) {
                CALLS.add(line);
            }
        }
        count(kind, path, true);
    }

    public FSDataInputStream open(Path path, int size) throws IOException {
        long began = enter("open", path);
        try {
            return super.open(path, size);
        } finally {
            leave(began, "open", path);
        }
    }

    public FSDataOutputStream create(
        Path path, FsPermission permission, boolean overwrite, int size, short replication,
        long block, Progressable progress
    ) throws IOException {
        long began = enter("create", path);
        try {
            return super.create(path, permission, overwrite, size, replication, block, progress);
        } finally {
            leave(began, "create", path);
        }
    }

    public FSDataOutputStream create(
        Path path, FsPermission permission, EnumSet flags, int size, short replication,
        long block, Progressable progress, org.apache.hadoop.fs.Options.ChecksumOpt checksum
    ) throws IOException {
        long began = enter("create", path);
        try {
            return super.create(
                path, permission, flags, size, replication, block, progress, checksum);
        } finally {
            leave(began, "create", path);
        }
    }

    public FSDataOutputStream createNonRecursive(
        Path path, FsPermission permission, boolean overwrite, int size, short replication,
        long block, Progressable progress
    ) throws IOException {
        long began = enter("create", path);
        try {
            return super.createNonRecursive(
                path, permission, overwrite, size, replication, block, progress);
        } finally {
            leave(began, "create", path);
        }
    }

    /** What a file context calls. */
    protected FSDataOutputStream primitiveCreate(
        Path path, FsPermission permission, EnumSet flags, int size, short replication,
        long block, Progressable progress, org.apache.hadoop.fs.Options.ChecksumOpt checksum
    ) throws IOException {
        long began = enter("create", path);
        try {
            return super.primitiveCreate(
                path, permission, flags, size, replication, block, progress, checksum);
        } finally {
            leave(began, "create", path);
        }
    }

    public boolean rename(Path from, Path to) throws IOException {
        long began = enter("rename", from);
        try {
            return super.rename(from, to);
        } finally {
            leave(began, "rename", from);
        }
    }

    /** What a file context calls. */
    protected void rename(Path from, Path to, org.apache.hadoop.fs.Options.Rename[] options)
        throws IOException {
        long began = enter("rename", from);
        try {
            super.rename(from, to, options);
        } finally {
            leave(began, "rename", from);
        }
    }

    public boolean delete(Path path, boolean recursive) throws IOException {
        long began = enter("delete", path);
        try {
            return super.delete(path, recursive);
        } finally {
            leave(began, "delete", path);
        }
    }

    public FileStatus[] listStatus(Path path) throws IOException {
        long began = enter("list", path);
        try {
            return super.listStatus(path);
        } finally {
            leave(began, "list", path);
        }
    }

    public RemoteIterator listStatusIterator(Path path) throws IOException {
        long began = enter("list", path);
        try {
            return super.listStatusIterator(path);
        } finally {
            leave(began, "list", path);
        }
    }

    public RemoteIterator listLocatedStatus(Path path) throws IOException {
        long began = enter("list", path);
        try {
            return super.listLocatedStatus(path);
        } finally {
            leave(began, "list", path);
        }
    }

    public FileStatus getFileStatus(Path path) throws IOException {
        long began = enter("status", path);
        try {
            return super.getFileStatus(path);
        } finally {
            leave(began, "status", path);
        }
    }

    public boolean mkdirs(Path path, FsPermission permission) throws IOException {
        long began = enter("mkdirs", path);
        try {
            return super.mkdirs(path, permission);
        } finally {
            leave(began, "mkdirs", path);
        }
    }

    public boolean mkdirs(Path path) throws IOException {
        long began = enter("mkdirs", path);
        try {
            return super.mkdirs(path);
        } finally {
            leave(began, "mkdirs", path);
        }
    }
}
