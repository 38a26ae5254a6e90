#!/usr/bin/env bash
# 私有部署的每日备份：保留 14 份，校验后再删旧的。
set -euo pipefail

BACKUP_DIR="${BACKUP_DIR:-/srv/lantai/backup}"
KEEP=14

dump_database() {
  local target="$1"
  pg_dump --format=custom lantai > "$target"
  pg_restore --list "$target" > /dev/null
}

prune_old_backups() {
  ls -1t "$BACKUP_DIR"/lantai-*.dump | tail -n +$((KEEP + 1)) | xargs -r rm --
}

main() {
  mkdir -p "$BACKUP_DIR"
  dump_database "$BACKUP_DIR/lantai-$(date +%Y%m%d).dump"
  prune_old_backups
}

main "$@"
