"""读取网关配置：3.2 的 .lbc 是 INI，4.0 的 .lbx 是 JSON。"""

import configparser
import json
from pathlib import Path


class ConfigError(ValueError):
    """配置缺字段或格式不对。"""


def load_gateway_config(path: Path) -> dict[str, object]:
    """按扩展名选择读法，返回统一的字典。"""
    if path.suffix == ".lbc":
        return _load_ini(path)
    if path.suffix == ".lbx":
        return validate_config(json.loads(path.read_text(encoding="utf-8")))
    raise ConfigError(f"unknown config type {path.suffix}")


def _load_ini(path: Path) -> dict[str, object]:
    parser = configparser.ConfigParser()
    parser.read(path, encoding="gbk")
    return validate_config({section: dict(parser[section]) for section in parser.sections()})


def validate_config(config: dict[str, object]) -> dict[str, object]:
    """network 与 serial 两节必须存在。"""
    missing = {"network", "serial"} - set(config)
    if missing:
        raise ConfigError(f"missing sections: {', '.join(sorted(missing))}")
    return config


def migrate_config_32_to_40(config: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """把 3.2 的配置改成 4.0：管理端口 8080 改 8443，去掉 Modbus ASCII 通道。"""
    migrated = {name: dict(section) for name, section in config.items()}
    migrated["network"]["admin_port"] = "8443"
    return {name: section for name, section in migrated.items() if section.get("protocol") != "modbus_ascii"}
