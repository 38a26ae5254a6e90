package gateway

import "time"

// SimSwitcher 双卡热备：丢包超过 30% 持续 20 秒切到备卡，主卡恢复 10 分钟后切回。
type SimSwitcher struct {
	badSince   time.Time
	goodSince  time.Time
	usingSpare bool
}

const (
	lossThreshold = 0.30
	switchAfter   = 20 * time.Second
	returnAfter   = 10 * time.Minute
)

// Observe 输入主卡当前丢包率，返回是否应使用备卡。
func (s *SimSwitcher) Observe(loss float64, now time.Time) bool {
	if loss > lossThreshold {
		s.goodSince = time.Time{}
		if s.badSince.IsZero() {
			s.badSince = now
		}
		if now.Sub(s.badSince) >= switchAfter {
			s.usingSpare = true
		}
		return s.usingSpare
	}
	s.badSince = time.Time{}
	if s.goodSince.IsZero() {
		s.goodSince = now
	}
	if s.usingSpare && now.Sub(s.goodSince) >= returnAfter {
		s.usingSpare = false
	}
	return s.usingSpare
}
