package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"

	"github.com/weir-dev/weir/internal/enforcer"
	"github.com/weir-dev/weir/internal/enforcer/memstore"
	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/sketch"
)

// Defaults of Options.
const (
	DefaultMaxCounters = 100_000
	DefaultTop         = 10
)

// Options says what is replayed. Workload and Policies must be set.
type Options struct {
	Workload policy.Workload
	Policies []policy.Policy
	// TrustedProxies are those whose X-Forwarded-For is believed, as for an application.
	TrustedProxies []netip.Prefix

	Format Format // Auto if empty
	// Fields gives the names that the log has for what is read of it.
	Fields map[Target]string

	// Factors are the variants: each counts by the policies' limits times a factor. The policies themselves are always
	// the first variant.
	Factors []float64
	// Proposals are further variants, with limits of their own.
	Proposals []Proposal
	// Peaks asks for how much each identity used at most.
	Peaks bool

	// MaxCounters bounds the counters of each variant, DefaultMaxCounters if 0. One takes about 250 bytes.
	MaxCounters int
	// Top is how many of the identities that were denied most are told, DefaultTop if 0.
	Top int
	// Wrong is called for each line that cannot be read. Nil: they are only counted.
	Wrong func(number int64, err error)
}

// Proposal is a set of limits: requests by the ID of a limit.
type Proposal struct {
	Name   string
	Limits map[string]int64
}

// topSize is how many identities the sketch of those that were denied most holds.
const topSize = 1000

// Replay decides about the lines of a log. It is not safe for concurrent use.
type Replay struct {
	options  Options
	row      policy.Row
	rules    map[string]*ruleCount // by the ID of a limit
	named    map[ruleName]*ruleCount
	order    []*ruleCount
	enforcer *enforcer.Enforcer
	store    *counters
	slots    *slots
	labels   labels
	peaks    *peaks

	read, wrong, late int64
	full              bool
	first, last       int64
	general           map[string]int64 // decisions without a rule, by source
	admitted          []int64          // by variant
	denied            *sketch.Sketch[deniedKey, deniedNote]
	series            series
	request           *enforcer.Request
	recent            *ruleCount // of the counter before
}

type ruleName struct{ policy, rule string }

type deniedKey struct {
	rule     *ruleCount
	identity enforcer.Identity
}

// deniedNote is who was denied, as the log has it, and when (µs).
type deniedNote struct {
	label       string
	first, last int64
}

// ruleCount is what one rule did.
type ruleCount struct {
	row              *policy.RowRule
	requests, denied int64
	shadowed         int64 // would have been denied
	firstDenied      int64
	lastDenied       int64
	everDenied       bool
}

// New returns a replay of the policies that target the workload.
func New(o Options) (*Replay, error) {
	o.MaxCounters = cmp.Or(o.MaxCounters, DefaultMaxCounters)
	o.Top = cmp.Or(o.Top, DefaultTop)
	o.Format = cmp.Or(o.Format, Auto)
	row, encoded, err := compile(o.Workload, o.Policies)
	if err != nil {
		return nil, err
	}
	r := &Replay{
		options: o,
		row:     row,
		rules:   make(map[string]*ruleCount),
		named:   make(map[ruleName]*ruleCount),
		general: make(map[string]int64),
		denied:  sketch.New[deniedKey, deniedNote](topSize),
	}
	for i := range row.Rules {
		rule := &ruleCount{row: &row.Rules[i]}
		r.order = append(r.order, rule)
		r.named[ruleName{rule.row.Policy, rule.row.Name}] = rule
		for _, l := range rule.row.Limits {
			r.rules[l.ID] = rule
		}
	}
	r.store = &counters{}
	r.store.variants = append(r.store.variants, variant{name: "policy", factor: 1})
	for _, f := range o.Factors {
		if f != 1 {
			r.store.variants = append(r.store.variants, variant{name: "×" + strconv.FormatFloat(f, 'g', -1, 64), factor: f})
		}
	}
	for _, p := range o.Proposals {
		r.store.variants = append(r.store.variants, variant{name: p.Name, factor: 1, limits: p.Limits})
	}
	for i := range r.store.variants {
		r.store.variants[i].store = memstore.New(memstore.Options{
			MaxKeys: o.MaxCounters, Clock: func() int64 { return r.store.now },
		})
	}
	r.store.granted = make([]bool, len(r.store.variants))
	r.admitted = make([]int64, len(r.store.variants))
	r.series.lanes = len(r.store.variants)
	if o.Peaks {
		r.peaks = newPeaks(o.MaxCounters)
	}
	r.enforcer = enforcer.New(enforcer.Options{
		Store: r.store, InProcess: true, Local: memstore.New(memstore.Options{}), Table: enforcer.FixedRow(encoded),
		TrustedProxies: o.TrustedProxies,
	})
	if err := r.enforcer.Poll(context.Background()); err != nil {
		return nil, err
	}
	r.slots = newSlots(readsOf(row, len(o.TrustedProxies) > 0), o.Fields)
	r.labels = labels{o.TrustedProxies}
	return r, nil
}

// readsOf lists the headers and attributes that the rules read.
func readsOf(row policy.Row, forwarded bool) []Target {
	var reads []Target
	add := func(prefix Target, name string) {
		if t := prefix + Target(name); name != "" && name != "Host" && !slices.Contains(reads, t) {
			reads = append(reads, t)
		}
	}
	for _, rule := range row.Rules {
		for _, m := range rule.Match {
			for _, h := range m.Headers {
				add(HeaderTarget, h.Name)
			}
		}
		for _, part := range rule.Key {
			for _, p := range append([]policy.KeyPart{part}, part.FirstOf...) {
				add(HeaderTarget, p.Header)
				add(AttributeTarget, p.Attribute)
			}
		}
		for _, o := range rule.Overrides {
			add(AttributeTarget, o.When.Attribute)
		}
		if rule.Cost != nil {
			add(AttributeTarget, rule.Cost.Attribute)
		}
	}
	if forwarded {
		add(HeaderTarget, "X-Forwarded-For")
	}
	return reads
}

// What Read returns of logs without requests.
var (
	ErrNothing = errors.New("no line could be read")
	ErrEmpty   = errors.New("there is no line in it")
)

// Read replays a log. It can be called again with the next one.
func (r *Replay) Read(ctx context.Context, log io.Reader) error {
	from := newLines(log)
	var p parser
	var clock times
	v, into := newValues(r.slots), newRecord(r.slots)
	r.request = &into.request
	formats := detection{slots: r.slots}
	read := func(p parser, line string) error {
		v.reset()
		if err := p.parse(line, v); err != nil {
			return err
		}
		return v.fill(&clock, into)
	}
	for n := 0; ; n++ {
		const often = 1<<14 - 1
		if n&often == 0 {
			r.look()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		line, err := from.next()
		switch {
		case err == io.EOF: //nolint:errorlint // readers return io.EOF itself
			switch {
			case r.read == 0 && r.wrong == 0 && p == nil && formats.head == nil:
				return ErrEmpty
			case r.read == 0:
				return ErrNothing
			}
			r.look()
			return nil
		case errors.Is(err, errLongLine):
			r.complain(from.number, err)
			continue
		case err != nil:
			return fmt.Errorf("reading the log behind line %d: %w", from.number, err)
		case line == "":
			continue
		}
		if p == nil {
			var head bool
			if r.options.Format == Auto {
				p, err = formats.tell(line, from.number, func(p parser) error { return read(p, line) }, r.complain)
			} else {
				p, head, err = newParser(r.options.Format, line, r.slots)
			}
			if err != nil {
				return fmt.Errorf("line %d: %w", from.number, err)
			}
			if p == nil || head {
				continue
			}
		}
		if err := read(p, line); err != nil {
			r.complain(from.number, err)
			continue
		}
		r.decide(ctx, into)
	}
}

// look sees whether the stores are so full that they forget what still weighs. Counters are spread over parts of a
// store, the fullest of which is full a little earlier than the whole.
func (r *Replay) look() {
	for i := range r.store.variants {
		r.full = r.full || r.store.variants[i].store.Len() > r.options.MaxCounters*9/10
	}
}

func (r *Replay) complain(number int64, err error) {
	r.wrong++
	if r.options.Wrong != nil {
		r.options.Wrong(number, err)
	}
}

// decide replays one request. Servers write a line when the request is over, so times go back a little; the clock does
// not.
func (r *Replay) decide(ctx context.Context, in *record) {
	now := in.time
	if r.read == 0 {
		r.first, r.last = now, now
	}
	if now < r.last {
		r.late++
		now = r.last
	}
	r.read++
	r.last, r.store.now = now, now
	r.store.asked = false
	d := r.enforcer.Decide(ctx, in.request)

	here := r.series.at(now)
	here.requests++
	for i := range r.admitted {
		granted := d.Allowed
		if r.store.asked {
			granted = r.store.granted[i]
		}
		if granted {
			r.admitted[i]++
			here.admitted[i]++
		}
	}
	if d.Rule == "" && !r.store.asked {
		r.general[d.Source]++
		return
	}
	r.count(now, &d)
}

// count enters a decision with each rule that took part in it.
func (r *Replay) count(now int64, d *enforcer.Decision) {
	if !r.store.asked { // decided by a rule alone: a key that is missing, a cost above all, or unlimited
		rule := r.named[ruleName{d.Policy, d.Rule}]
		rule.requests++
		if !d.Allowed {
			var identity enforcer.Identity
			if held, ok := r.enforcer.Held(d.Policy, d.Rule, *r.request); ok && len(held) > 0 {
				identity = held[0].Counter.Identity
			}
			rule.denied++
			r.note(now, rule, identity)
		}
		return
	}
	var last *ruleCount
	for i := range r.store.wanted {
		c := &r.store.wanted[i]
		rule := r.recent
		if rule == nil || !has(rule.row.Limits, c.ID) {
			rule = r.rules[c.ID]
			r.recent = rule
		}
		if rule != last {
			rule.requests++
			if !d.Allowed && rule.row.Name == d.Rule && rule.row.Policy == d.Policy {
				rule.denied++
				r.note(now, rule, c.Identity)
			}
			last = rule
		}
		if r.peaks != nil {
			r.peaks.add(now, c)
		}
	}
	if d.Allowed {
		r.countShadow(now)
	}
}

// countShadow enters what shadow rules would have denied.
func (r *Replay) countShadow(now int64) {
	start := r.store.enforced
	for i, end := range r.store.shadow {
		if r.store.shadowed[i] == 0 {
			c := &r.store.wanted[start]
			rule := r.rules[c.ID]
			rule.shadowed++
			r.note(now, rule, c.Identity)
		}
		start = end
	}
}

func has(limits []policy.RowLimit, id string) bool {
	for i := range limits {
		if limits[i].ID == id {
			return true
		}
	}
	return false
}

// note remembers who was denied, or would have been.
func (r *Replay) note(now int64, rule *ruleCount, id enforcer.Identity) {
	if !rule.everDenied {
		rule.everDenied, rule.firstDenied = true, now
	}
	rule.lastDenied = now
	item, fresh := r.denied.Add(deniedKey{rule, id}, 1)
	if fresh {
		item.Value.label, item.Value.first = r.labels.of(rule.row, r.request), now
	}
	item.Value.last = now
}
