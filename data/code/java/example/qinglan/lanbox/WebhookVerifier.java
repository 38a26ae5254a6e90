package example.qinglan.lanbox;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.HexFormat;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** 校验 Webhook 签名：HMAC-SHA256，时间戳超过 5 分钟的拒绝，防止重放。 */
public final class WebhookVerifier {
    private static final Duration MAX_AGE = Duration.ofMinutes(5);
    private final byte[] secret;

    public WebhookVerifier(String secret) {
        this.secret = secret.getBytes(StandardCharsets.UTF_8);
    }

    /** 签名正确且没有过期时为真。 */
    public boolean verify(byte[] body, String signature, Instant timestamp, Instant now) {
        if (Duration.between(timestamp, now).abs().compareTo(MAX_AGE) > 0) {
            return false;
        }
        byte[] expected = HexFormat.of().formatHex(sign(body)).getBytes(StandardCharsets.US_ASCII);
        return MessageDigest.isEqual(expected, signature.getBytes(StandardCharsets.US_ASCII));
    }

    private byte[] sign(byte[] body) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(secret, "HmacSHA256"));
            return mac.doFinal(body);
        } catch (java.security.GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }
}
