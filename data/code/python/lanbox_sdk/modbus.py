"""Modbus RTU 帧的解析与校验。"""

import struct
from dataclasses import dataclass


def crc16_modbus(data: bytes) -> int:
    """Modbus 的 CRC16，多项式 0xA001，初值 0xFFFF。"""
    crc = 0xFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ 0xA001 if crc & 1 else crc >> 1
    return crc


class FrameError(ValueError):
    """帧太短、校验错误或从站返回异常码。"""


@dataclass(frozen=True)
class ModbusFrame:
    """一帧应答。"""

    slave: int
    function: int
    registers: tuple[int, ...]


class ModbusFrameParser:
    """把字节流切成帧；3.2 的字节序为 CDAB，4.0 为 ABCD。"""

    def __init__(self, byte_order: str = "ABCD") -> None:
        self._byte_order = byte_order

    def parse(self, data: bytes) -> ModbusFrame:
        """解析读保持寄存器（功能码 3）的应答。"""
        if len(data) < 5:
            raise FrameError("frame too short")
        body, received = data[:-2], struct.unpack("<H", data[-2:])[0]
        if crc16_modbus(body) != received:
            raise FrameError("crc mismatch")
        if body[1] & 0x80:
            raise FrameError(f"exception code {body[2]}")
        count = body[2] // 2
        return ModbusFrame(body[0], body[1], struct.unpack(f">{count}H", body[3 : 3 + 2 * count]))

    def to_float(self, high: int, low: int) -> float:
        """两个寄存器合成一个浮点数，按字节序交换。"""
        if self._byte_order == "CDAB":
            high, low = low, high
        return struct.unpack(">f", struct.pack(">HH", high, low))[0]
