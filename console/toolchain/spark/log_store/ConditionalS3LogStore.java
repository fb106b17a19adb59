package dev.sluice.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Commits to the Delta log in S3 by conditional writes (If-None-Match), so that no writer replaces a commit of another one.
 *
 * <p>Delta's own store for S3 looks whether the file exists and then writes it. A commit of another process in between is lost.
 *
 * <p>After an error the store is asked for the file ({@link CommitFile}).
 *
 * <p>Needs Hadoop 3.4.2 or later.
 */
public final class ConditionalS3LogStore extends HadoopFileSystemLogStore {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
  private static final int ATTEMPTS_MAX = 5;

  public ConditionalS3LogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration) throws IOException {
    FileSystem store = path.getFileSystem(configuration);
    CommitFile commit = new CommitFile(store, path, actions);
    if (overwrite) {
      put(store.create(path, true), commit.content());
      return;
    }
    for (int attempt = 1; ; attempt++) {
      try {
        FSDataOutputStreamBuilder<?, ?> builder = store.createFile(path);
        builder.overwrite(true);
        builder.must(CONDITIONAL, true);
        put(builder.build(), commit.content());
        return;
      } catch (IOException error) {
        if (commit.isWritten(error)) {
          return;
        }
        // The store refuses one of two requests at the same time, even if the other one fails then. A statement that was
        // interrupted must not commit any more.
        if (attempt == ATTEMPTS_MAX || error instanceof InterruptedIOException) {
          throw error;
        }
      }
    }
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
    return false; // S3 shows an object when it is complete.
  }

  /** Writes a whole file. An incomplete one is aborted, because closing the stream would upload it. */
  private static void put(FSDataOutputStream stream, byte[] content) throws IOException {
    try {
      stream.write(content);
    } catch (IOException | RuntimeException error) {
      stream.abort();
      throw error;
    }
    stream.close();
  }
}
