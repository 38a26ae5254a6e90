/** 浏览器端会话：闲置 30 分钟退出，同一账号最多 3 处登录。 */

const IDLE_LIMIT_MS = 30 * 60 * 1000;

export class SessionKeeper {
  private lastActivity = Date.now();

  constructor(private readonly logout: () => void) {}

  /** 用户有操作时调用。 */
  touch(now: number = Date.now()): void {
    this.lastActivity = now;
  }

  /** 每分钟检查一次是否闲置超时。 */
  checkIdle(now: number = Date.now()): boolean {
    const idle = now - this.lastActivity >= IDLE_LIMIT_MS;
    if (idle) {
      this.logout();
    }
    return idle;
  }
}

export function evictOldestSession(sessions: { id: string; startedAt: number }[], limit = 3): string[] {
  const sorted = [...sessions].sort((a, b) => a.startedAt - b.startedAt);
  return sorted.slice(0, Math.max(0, sorted.length - limit)).map((session) => session.id);
}
