/** 看板曲线：降采样到 5000 点，并按质量码着色。 */

export interface TelemetryPoint {
  timestamp: number;
  value: number;
  quality: 0 | 1 | 2;
}

export const MAX_POINTS = 5000;

/** 最大三角形三桶法降采样，保留形状。 */
export function downsampleLttb(points: TelemetryPoint[], limit: number = MAX_POINTS): TelemetryPoint[] {
  if (points.length <= limit) {
    return points;
  }
  const bucket = (points.length - 2) / (limit - 2);
  const kept: TelemetryPoint[] = [points[0]];
  for (let i = 0; i < limit - 2; i += 1) {
    const start = Math.floor(i * bucket) + 1;
    const end = Math.min(Math.floor((i + 1) * bucket) + 1, points.length - 1);
    const previous = kept[kept.length - 1];
    let best = points[start];
    let area = -1;
    for (let j = start; j < end; j += 1) {
      const size = Math.abs((points[j].timestamp - previous.timestamp) * (points[j].value - previous.value));
      if (size > area) {
        area = size;
        best = points[j];
      }
    }
    kept.push(best);
  }
  kept.push(points[points.length - 1]);
  return kept;
}

/** 质量码对应的颜色：正常、可疑、无效。 */
export function qualityColor(quality: TelemetryPoint["quality"]): string {
  return ["#2e7d32", "#f9a825", "#c62828"][quality];
}
