package scenario

import (
	"strconv"
	"strings"

	"github.com/weir-dev/weir/internal/enforcer"
)

// sent is what came of the requests of a step.
type sent struct {
	// decisions are A and D, and a dot while there is none.
	decisions   []byte
	waiting     int
	first, last enforcer.Decision
	sources     map[string]int64

	chargedBefore, chargedAfter map[string]int64 // by limit ID
}

func newSent(count int) *sent {
	return &sent{
		decisions: []byte(strings.Repeat(".", count)),
		waiting:   count,
		sources:   make(map[string]int64),
	}
}

// decided notes the decision about request i.
func (s *sent) decided(i int, d enforcer.Decision) {
	s.decisions[i] = 'D'
	if d.Allowed {
		s.decisions[i] = 'A'
	}
	s.sources[d.Source]++
	if i == 0 {
		s.first = d
	}
	if i == len(s.decisions)-1 {
		s.last = d
	}
}

func (s *sent) count(letter string) int64 {
	return int64(strings.Count(string(s.decisions), letter))
}

// shown are the decisions in a form that can be read: the first ones of many, and numbers.
func (s *sent) shown() string {
	const most = 100
	if len(s.decisions) <= most {
		return string(s.decisions)
	}
	return string(s.decisions[:most]) + "… (" + strconv.Itoa(len(s.decisions)) + ")"
}
