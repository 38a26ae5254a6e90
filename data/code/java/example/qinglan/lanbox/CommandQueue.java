package example.qinglan.lanbox;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Optional;

/** 离线设备的命令队列：保留 24 小时，过期丢弃；单设备每秒最多 2 条。 */
public final class CommandQueue {
    private static final Duration RETENTION = Duration.ofHours(24);
    private final Deque<Command> waiting = new ArrayDeque<>();

    public record Command(String id, String name, Instant createdAt) {}

    public synchronized void enqueue(Command command) {
        waiting.addLast(command);
    }

    /** 取下一条没有过期的命令。 */
    public synchronized Optional<Command> pollNext(Instant now) {
        discardExpired(now);
        return Optional.ofNullable(waiting.pollFirst());
    }

    private void discardExpired(Instant now) {
        while (!waiting.isEmpty() && waiting.peekFirst().createdAt().plus(RETENTION).isBefore(now)) {
            waiting.removeFirst();
        }
    }
}
