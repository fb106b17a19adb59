package dev.sluice.storage;

import com.google.cloud.hadoop.repackaged.gcs.com.google.auth.oauth2.GoogleCredentials;
import com.google.cloud.hadoop.util.AccessTokenProvider;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;

/**
 * Gives Google's client the tokens of an account whose key is in the environment.
 *
 * <p>The client reads keys only from files, and settings are visible in a process's command line, its log and its UI.
 */
public final class EnvironmentTokens implements AccessTokenProvider {
  private static final String KEY = "SLUICE_GOOGLE_SERVICE_ACCOUNT_KEY";
  private static final String SCOPE = "https://www.googleapis.com/auth/devstorage.read_write";

  private Configuration configuration;
  private GoogleCredentials account;

  @Override
  public synchronized AccessToken getAccessToken() {
    try {
      account().refreshIfExpired();
      var given = account().getAccessToken();
      return new AccessToken(given.getTokenValue(), given.getExpirationTime().toInstant());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  @Override
  public synchronized void refresh() throws IOException {
    account().refresh();
  }

  @Override
  public void setConf(Configuration given) {
    configuration = given;
  }

  @Override
  public Configuration getConf() {
    return configuration;
  }

  private GoogleCredentials account() throws IOException {
    if (account == null) {
      String key = System.getenv(KEY);
      if (key == null) {
        throw new IOException("the environment of this process does not have " + KEY);
      }
      byte[] content = key.getBytes(StandardCharsets.UTF_8);
      account = GoogleCredentials.fromStream(new ByteArrayInputStream(content)).createScoped(SCOPE);
    }
    return account;
  }
}
