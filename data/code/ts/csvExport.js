// 导出 CSV：UTF-8 带标记，方便 Excel 打开；标准版 1 万行，企业版 20 万行。

const LIMITS = { standard: 10000, enterprise: 200000 };

/** 转义一个单元格。 */
export function escapeCsvCell(value) {
  const text = String(value ?? "");
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** 超过行数上限时抛出 DB-102。 */
export function buildCsv(rows, edition) {
  if (rows.length > LIMITS[edition]) {
    throw new Error("DB-102: too many rows");
  }
  return "\ufeff" + rows.map((row) => row.map(escapeCsvCell).join(",")).join("\r\n");
}
