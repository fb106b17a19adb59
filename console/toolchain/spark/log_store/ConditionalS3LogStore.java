package dev.sluice.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
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
 * <p>An error of a write does not tell whether the store has the file: the client repeats requests whose answers are lost, and the
 * repetition is refused because the first one succeeded. So after an error the store is asked for the file. A commit has an id of its
 * own, so a file with the same bytes is this commit.
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
    byte[] content = joined(actions);
    if (overwrite) {
      put(store.create(path, true), content);
      return;
    }
    for (int attempt = 1; ; attempt++) {
      try {
        FSDataOutputStreamBuilder<?, ?> builder = store.createFile(path);
        builder.overwrite(true);
        builder.must(CONDITIONAL, true);
        put(builder.build(), content);
        return;
      } catch (IOException error) {
        byte[] there = content(store, path);
        if (there != null && Arrays.equals(there, content)) {
          return;
        }
        if (there != null) {
          FileAlreadyExistsException exists = new FileAlreadyExistsException(path.toString());
          exists.initCause(error);
          throw exists;
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

  private static byte[] joined(Iterator<String> actions) {
    ByteArrayOutputStream content = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      content.writeBytes((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
    return content.toByteArray();
  }

  /** Returns the bytes of a file, or null if there is none. */
  private static byte[] content(FileSystem store, Path path) throws IOException {
    try (var stream = store.open(path)) {
      return stream.readAllBytes();
    } catch (FileNotFoundException error) {
      return null;
    }
  }
}
