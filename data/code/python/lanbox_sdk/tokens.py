"""访问令牌的保存与刷新。访问令牌 2 小时有效，刷新令牌 30 天。"""

import threading
import time
from dataclasses import dataclass, field

REFRESH_AHEAD_SECONDS = 600  # 过期前 10 分钟就刷新


@dataclass
class TokenStore:
    """多线程共用的令牌；多进程请换成放在数据库里的实现。"""

    access_token: str = ""
    refresh_token: str = ""
    expires_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def needs_refresh(self, now: float | None = None) -> bool:
        """离过期不到 10 分钟，或根本没有令牌。"""
        moment = time.time() if now is None else now
        return moment >= self.expires_at - REFRESH_AHEAD_SECONDS


def refresh_access_token(store: TokenStore, transport, client_id: str, client_secret: str) -> str:
    """用刷新令牌换新的访问令牌；刷新令牌也失效时改用密钥重新获取。"""
    with store.lock:
        grant = {"grant_type": "refresh_token", "refresh_token": store.refresh_token}
        if not store.refresh_token:
            grant = {"grant_type": "client_credentials"}
        grant |= {"client_id": client_id, "client_secret": client_secret}
        reply = transport("POST", "https://api.qinglan.example/v2/oauth/token", {}, json=grant)
        store.access_token = reply["access_token"]
        store.refresh_token = reply.get("refresh_token", store.refresh_token)
        store.expires_at = time.time() + reply["expires_in"]
        return store.access_token


def revoke_tokens(store: TokenStore, transport) -> None:
    """注销：吊销服务端令牌并清空本地。"""
    transport("POST", "https://api.qinglan.example/v2/oauth/revoke", {}, json={"token": store.refresh_token})
    store.access_token = store.refresh_token = ""
    store.expires_at = 0.0
