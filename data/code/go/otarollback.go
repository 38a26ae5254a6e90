package gateway

import "errors"

// ErrNoPrevious 没有可以回退的版本。
var ErrNoPrevious = errors.New("no previous firmware")

// BootCounter 记录新固件连续启动失败的次数，3 次即回滚。
type BootCounter struct {
	failures int
	previous string
}

// RecordFailure 增加失败次数，返回是否需要回滚。
func (c *BootCounter) RecordFailure() bool {
	c.failures++
	return c.failures >= 3
}

// RollbackFirmware 返回上一个固件版本并清零计数。
func (c *BootCounter) RollbackFirmware() (string, error) {
	if c.previous == "" {
		return "", ErrNoPrevious
	}
	c.failures = 0
	return c.previous, nil
}
