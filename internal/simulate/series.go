package simulate

// widths are the lengths of a series' buckets in µs; each is a multiple of the one before it.
var widths = [...]int64{
	1 * second, 5 * second, 10 * second, 30 * second,
	1 * minute, 5 * minute, 10 * minute, 30 * minute,
	1 * hour, 3 * hour, 6 * hour, 12 * hour, 24 * hour, 7 * 24 * hour, 28 * 24 * hour, 364 * 24 * hour, 364 * 100 * 24 * hour,
}

const (
	second = int64(1_000_000)
	minute = 60 * second
	hour   = 60 * minute
)

// maxBuckets bounds a series. Where there would be more, buckets become longer.
const maxBuckets = 240

// series counts what happens over time, each event at or after the one before it.
type series struct {
	width   int // index in widths
	start   int64
	buckets []bucket
	lanes   int
}

// bucket is what happened in one width of time.
type bucket struct {
	requests int64
	admitted []int64 // by each variant
}

// at returns the bucket of a time.
func (s *series) at(now int64) *bucket {
	if len(s.buckets) == 0 {
		s.start = now / widths[s.width]
	}
	for {
		i := now/widths[s.width] - s.start
		if i < maxBuckets || s.width == len(widths)-1 {
			i = min(max(i, 0), maxBuckets-1)
			for int64(len(s.buckets)) <= i {
				s.buckets = append(s.buckets, bucket{admitted: make([]int64, s.lanes)})
			}
			return &s.buckets[i]
		}
		s.widen()
	}
}

func (s *series) widen() {
	times := widths[s.width+1] / widths[s.width]
	start := s.start / times
	var wide []bucket
	for i, b := range s.buckets {
		j := (s.start+int64(i))/times - start
		for int64(len(wide)) <= j {
			wide = append(wide, bucket{admitted: make([]int64, s.lanes)})
		}
		wide[j].requests += b.requests
		for k, n := range b.admitted {
			wide[j].admitted[k] += n
		}
	}
	s.width, s.start, s.buckets = s.width+1, start, wide
}
