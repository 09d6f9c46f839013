package simulate

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

var errTime = errors.New("the time cannot be read: want Unix time, 2006-01-02T15:04:05Z07:00 or 02/Jan/2006:15:04:05 -0700")

// times reads the times of a log. Lines of one second mostly write it alike, so the last one is remembered.
type times struct {
	text   string
	micros int64
}

// parse returns a time in µs since 1970.
func (t *times) parse(s string) (int64, error) {
	if s == t.text && s != "" {
		return t.micros, nil
	}
	micros, err := parseTime(s)
	if err != nil {
		return 0, err
	}
	t.text, t.micros = s, micros
	return micros, nil
}

func parseTime(s string) (int64, error) {
	var micros int64
	var ok bool
	switch {
	case len(s) > 11 && s[2] == '/' && s[6] == '/' && s[11] == ':':
		micros, ok = parseCommon(s)
	case len(s) >= 19 && s[4] == '-' && s[7] == '-' && (s[10] == 'T' || s[10] == 't' || s[10] == ' '):
		micros, ok = parseISO(s)
	default:
		micros, ok = parseUnix(s)
	}
	// The clock of counters starts in 1970, and its µs have 53 bits: until 2255.
	if !ok || micros < 0 || micros >= 1<<53 {
		return 0, errTime
	}
	return micros, nil
}

// parseCommon reads the form of the common log format, 10/Oct/2000:13:55:36 -0700.
func parseCommon(s string) (int64, bool) {
	if len(s) != len("02/Jan/2006:15:04:05 -0700") {
		return 0, false
	}
	t, err := time.Parse("02/Jan/2006:15:04:05 -0700", s)
	return t.UnixMicro(), err == nil
}

// parseISO reads RFC 3339, also with a blank between date and time; without a zone it is UTC.
func parseISO(s string) (int64, bool) {
	year, ok1 := digits(s[0:4])
	month, ok2 := digits(s[5:7])
	day, ok3 := digits(s[8:10])
	hour, ok4 := digits(s[11:13])
	minute, ok5 := digits(s[14:16])
	second, ok6 := digits(s[17:19])
	if !(ok1 && ok2 && ok3 && ok4 && ok5 && ok6) || s[13] != ':' || s[16] != ':' ||
		month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60 {
		return 0, false
	}
	micros := (days(year, month, day)*86400 + hour*3600 + minute*60 + second) * 1_000_000
	rest := s[19:]
	if rest != "" && (rest[0] == '.' || rest[0] == ',') {
		n := 1
		for unit := int64(100_000); n < len(rest) && '0' <= rest[n] && rest[n] <= '9'; n++ {
			micros += int64(rest[n]-'0') * unit
			unit /= 10
		}
		if n == 1 {
			return 0, false
		}
		rest = rest[n:]
	}
	offset, ok := parseZone(strings.TrimPrefix(rest, " "))
	return micros - offset, ok
}

// parseZone returns the µs that a zone is ahead of UTC.
func parseZone(s string) (int64, bool) {
	if s == "" || s == "Z" || s == "z" || s == "UTC" {
		return 0, true
	}
	if len(s) == len("+07:00") && s[3] == ':' {
		s = s[:3] + s[4:]
	}
	if len(s) != len("+0700") || s[0] != '+' && s[0] != '-' {
		return 0, false
	}
	hours, ok1 := digits(s[1:3])
	minutes, ok2 := digits(s[3:5])
	offset := (hours*60 + minutes) * 60 * 1_000_000
	if s[0] == '-' {
		offset = -offset
	}
	return offset, ok1 && ok2 && hours < 24 && minutes < 60
}

// parseUnix reads a number of seconds, ms, µs or ns since 1970. Which of them it is is told by its size: seconds until
// 5138 are below all ms since 1973.
func parseUnix(s string) (int64, bool) {
	whole, fraction, _ := strings.Cut(s, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n < 0 {
		f, err := strconv.ParseFloat(s, 64) // 1.7e9
		return int64(f * 1e6), err == nil && f >= 0 && f < 1e11
	}
	unit := int64(1_000_000)
	switch {
	case n >= 1e17:
		return n / 1000, true
	case n >= 1e14:
		return n, true
	case n >= 1e11:
		unit = 1000
	}
	micros := n * unit
	for i := 0; i < len(fraction) && unit > 1; i++ {
		if fraction[i] < '0' || fraction[i] > '9' {
			return 0, false
		}
		unit /= 10
		micros += int64(fraction[i]-'0') * unit
	}
	return micros, true
}

func digits(s string) (int64, bool) {
	var n int64
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, true
}

// days returns the days since 1970 of a date of the Gregorian calendar, counting years from March so that a leap day is
// the last of one.
func days(year, month, day int64) int64 {
	if month <= 2 {
		year--
		month += 12
	}
	era := year / 400
	ofEra := year - era*400
	ofYear := (153*(month-3)+2)/5 + day - 1
	return era*146097 + ofEra*365 + ofEra/4 - ofEra/100 + ofYear - 719468
}
