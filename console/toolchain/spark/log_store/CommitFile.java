package dev.sluice.storage;

import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * The file of a commit in the Delta log, and whether the store has it after a write that failed.
 *
 * <p>An error of a write does not tell that: the client repeats requests whose answers are lost, and the repetition is refused because
 * the first one succeeded. A commit has an id of its own, so a file with the same bytes is this commit.
 */
record CommitFile(FileSystem store, Path path, byte[] content) {
  CommitFile(FileSystem store, Path path, Iterator<String> actions) {
    this(store, path, joined(actions));
  }

  /**
   * Returns whether the store has this commit.
   *
   * @throws FileAlreadyExistsException if it has another one of this version
   */
  boolean isWritten(IOException error) throws IOException {
    byte[] there = storedContent();
    if (there == null) {
      return false;
    }
    if (Arrays.equals(there, content)) {
      return true;
    }
    FileAlreadyExistsException exists = new FileAlreadyExistsException(path.toString());
    exists.initCause(error);
    throw exists;
  }

  private byte[] storedContent() throws IOException {
    try (var stream = store.open(path)) {
      return stream.readAllBytes();
    } catch (FileNotFoundException error) {
      return null;
    }
  }

  private static byte[] joined(Iterator<String> actions) {
    ByteArrayOutputStream content = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      content.writeBytes((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
    return content.toByteArray();
  }
}
