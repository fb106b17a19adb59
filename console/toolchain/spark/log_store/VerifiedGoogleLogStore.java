package dev.sluice.storage;

import io.delta.storage.GCSLogStore;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * Commits to the Delta log in Google Cloud Storage as Delta's own log store does, and after an error asks the store for the commit.
 *
 * <p>Delta's log store writes with a condition (generation 0), so no writer replaces a commit of another one. But if the answer of the
 * store is lost, it reports a conflict or an error, although the commit is there.
 */
public final class VerifiedGoogleLogStore extends GCSLogStore {
  public VerifiedGoogleLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration) throws IOException {
    if (overwrite) {
      super.write(path, actions, true, configuration);
      return;
    }
    CommitFile commit = new CommitFile(path.getFileSystem(configuration), path, actions);
    Stream<String> lines = new String(commit.content(), StandardCharsets.UTF_8).lines();
    try {
      super.write(path, lines.iterator(), false, configuration);
    } catch (InterruptedIOException error) {
      throw error; // Delta's thread may still write the commit.
    } catch (IOException error) {
      if (!commit.isWritten(error)) {
        throw error;
      }
    }
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
    return false; // The store shows an object when it is complete.
  }
}
