package policy

import (
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	cases := map[string]struct {
		in   string
		want int64 // µs; -1: refused
	}{
		"milliseconds":                         {"500ms", 500_000},
		"seconds":                              {"60s", 60_000_000},
		"minutes":                              {"1m", 60_000_000},
		"minutes and seconds":                  {"1m0s", 60_000_000},
		"hours and minutes":                    {"1h30m", 5_400_000_000},
		"31 days":                              {"744h", 2_678_400_000_000},
		"all units":                            {"1h2m3s4ms", 3_723_004_000},
		"a unit twice, in any order":           {"1s1h1s", 3_602_000_000},
		"a minute, then milliseconds":          {"1m1ms", 60_001_000},
		"leading zeros":                        {"00090s", 90_000_000},
		"zero":                                 {"0s", 0},
		"the largest":                          {"99999h99999h99999h99999h", 399996 * 3_600_000_000},
		"empty":                                {"", -1},
		"a fraction":                           {"0.5h", -1},
		"a day":                                {"1d", -1},
		"a sign":                               {"-5s", -1},
		"a plus":                               {"+5s", -1},
		"an exponent":                          {"1e3s", -1},
		"six digits":                           {"100000s", -1},
		"five numbers":                         {"1h1m1s1ms1ms", -1},
		"a number without unit":                {"60", -1},
		"a unit without number":                {"s", -1},
		"a blank":                              {"1h 30m", -1},
		"a line break at the end":              {"60s\n", -1},
		"microseconds":                         {"100us", -1},
		"upper case":                           {"1H", -1},
		"digits of another script":             {"٣s", -1},
		"what only looks like the unit minute": {"1mм", -1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseDuration(tc.in)
			if (err != nil) != (tc.want < 0) {
				t.Fatalf("ParseDuration(%q) = %d, %v, want %d", tc.in, got, err, tc.want)
			}
			if err == nil && got != tc.want {
				t.Errorf("ParseDuration(%q) = %d µs, want %d", tc.in, got, tc.want)
			}
		})
	}
}

func TestWindowBounds(t *testing.T) {
	for in, want := range map[string]bool{
		"99ms": false, "100ms": true, "744h": true, "744h1ms": false, "0s": false, "1d": false,
	} {
		if _, ok := parseWindow(in); ok != want {
			t.Errorf("parseWindow(%q): accepted is %t, want %t", in, ok, want)
		}
	}
}

// Whatever ParseDuration takes, Go's own parser reads as the same length.
func FuzzParseDuration(f *testing.F) {
	for _, seed := range []string{"60s", "1m0s", "1h30m", "100ms", "99999h99999h99999h99999h", "1d", "-5s", "0.5h", "", "1m1ms"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseDuration(s)
		if err != nil {
			return
		}
		want, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("ParseDuration(%q) = %d, but Go refuses it: %v", s, got, err)
		}
		if got != want.Microseconds() {
			t.Errorf("ParseDuration(%q) = %d µs, want %d", s, got, want.Microseconds())
		}
	})
}
