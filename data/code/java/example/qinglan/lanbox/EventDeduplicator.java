package example.qinglan.lanbox;

import java.util.LinkedHashMap;
import java.util.Map;

/** 按 event_id 去重；事件可能重复投递，也不保证顺序。 */
public final class EventDeduplicator {
    private final Map<String, Long> seen;

    public EventDeduplicator(int capacity) {
        this.seen = new LinkedHashMap<>(capacity, 0.75f, true) {
            @Override
            protected boolean removeEldestEntry(Map.Entry<String, Long> eldest) {
                return size() > capacity;
            }
        };
    }

    /** 第一次见到这个事件时为真。 */
    public synchronized boolean firstTime(String eventId, long now) {
        return seen.putIfAbsent(eventId, now) == null;
    }

    /** 同一设备的上下线事件按 sequence 判断新旧。 */
    public static boolean isNewer(long sequence, long lastSequence) {
        return sequence > lastSequence;
    }
}
