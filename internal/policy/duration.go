package policy

import (
	"fmt"
	"regexp"
)

// Bounds of a window in µs.
const (
	MinWindow = 100 * 1000                      // 100ms
	MaxWindow = 31 * 24 * 60 * 60 * 1000 * 1000 // 744h
)

// durationPattern is GEP-2257's, byte for byte: one to four numbers of one to five digits, each with a unit.
const durationPattern = `^([0-9]{1,5}(h|m|s|ms)){1,4}$`

var durationRegexp = regexp.MustCompile(durationPattern)

// ParseDuration reads a GEP-2257 duration, such as 500ms, 90s, 1m or 1h30m, and returns it in µs. It takes exactly what
// the pattern takes: no sign, fraction, day or blank. The largest one is 399996h.
func ParseDuration(s string) (int64, error) {
	if !durationRegexp.MatchString(s) {
		return 0, fmt.Errorf("duration %q: want one to four numbers with the units h, m, s or ms, such as 500ms, 90s or 1h30m", s)
	}
	var total, number int64
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case 'h':
			total, number = total+number*60*60*1000*1000, 0
		case 'm':
			if i+1 < len(s) && s[i+1] == 's' {
				i++
				total, number = total+number*1000, 0
				continue
			}
			total, number = total+number*60*1000*1000, 0
		case 's':
			total, number = total+number*1000*1000, 0
		default:
			number = number*10 + int64(c-'0')
		}
	}
	return total, nil
}

// parseWindow reads the window of a limit: a duration from MinWindow to MaxWindow.
func parseWindow(s string) (micros int64, ok bool) {
	micros, err := ParseDuration(s)
	return micros, err == nil && validWindow(micros)
}

func validWindow(micros int64) bool { return MinWindow <= micros && micros <= MaxWindow }
