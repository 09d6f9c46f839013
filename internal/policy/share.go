package policy

// Replica is one of the replicas that share a limit while the store is away.
type Replica struct {
	// Rank counts from 0 and is the replica's own among the N.
	Rank int
	// N is how many share; below 1 reads as 1.
	N int
	// Exact says that the ranks are the ones that N was counted with. Without it the replica takes no part of a
	// remainder, because another one may have taken it.
	Exact bool
}

// maxLogShare is the largest share of a SlidingWindowCounter that is counted as a log. A loaded counter of s admits
// only s-1 in most windows, which for small shares is a large part.
const maxLogShare = 64

// ShareOf returns what one replica admits on its own of a limit, for the identities whose hash is key. The limit has
// the same ID, but may have another algorithm and another window.
//
// The parts of the replicas are ⌊Requests/N⌋ and ⌈Requests/N⌉; key turns which replicas have the larger ones, so that
// they add up to Requests for every key, and one replica is not the richer one for all keys. Ten per minute on three
// replicas are 4, 3 and 3.
//
// maxCost is the highest cost of a request under the rule, 1 without a cost. Under NeverZero (the default) a replica
// whose part is below it gets a bucket that just holds one such request, filled at Requests/(N·Window): two per minute
// on three replicas are one per 90 s each. In the long run that adds up to the limit, but N·maxCost may be admitted at
// once. Under NeverExceed parts may be 0, and a replica with such a part denies everything.
func ShareOf(l RowLimit, maxCost int64, rounding Rounding, r Replica, key uint64) RowLimit {
	n := int64(max(r.N, 1))
	if n == 1 || l.Requests == 0 {
		return l
	}
	whole := l
	l.Requests = r.part(whole.Requests, n, key)

	capacity := whole.Requests
	if l.Algorithm == TokenBucket {
		if whole.Burst > 0 {
			capacity = whole.Burst
		}
		l.Burst = r.part(capacity, n, key)
	}
	if rounding == RoundingNeverExceed {
		if l.Algorithm == TokenBucket && l.Burst == 0 {
			l.Requests = 0
		}
		return small(l)
	}

	// A cost above the whole capacity is never admitted, and a share does not change that.
	need := min(max(maxCost, 1), capacity)
	if whole.Requests < n*need {
		return RowLimit{
			ID:        l.ID,
			Algorithm: TokenBucket,
			Requests:  whole.Requests,
			Window:    n * whole.Window,
			Burst:     max(l.Burst, need),
		}
	}
	if l.Algorithm == TokenBucket {
		l.Burst = max(l.Burst, need)
	}
	return small(l)
}

// part is the replica's part of a number.
func (r Replica) part(number, n int64, key uint64) int64 {
	part := number / n
	if r.Exact && r.Rank >= 0 && r.position(n, key) < number%n {
		part++
	}
	return part
}

// Part is the replica's part of what is left of a limit for the identities whose hash is key.
func (r Replica) Part(left int64, key uint64) int64 {
	return r.part(left, int64(max(r.N, 1)), key)
}

// position is the replica's rank turned by the key.
func (r Replica) position(n int64, key uint64) int64 {
	return int64((uint64(r.Rank) + key%uint64(n)) % uint64(n))
}

func small(l RowLimit) RowLimit {
	if l.Algorithm == SlidingWindowCounter && l.Requests <= maxLogShare {
		l.Algorithm = SlidingWindowLog
	}
	return l
}
