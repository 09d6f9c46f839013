package pgstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

const (
	// cleanUpPages is how much one step of the clean-up reads: 256 pages of 8 KB, some 10,000 rows.
	cleanUpPages = 256
	// cleanUpMany is how many rows a step has to find for the next one to follow at once. Keys that come and go faster
	// than a step every interval are so cleaned up as fast as they come.
	cleanUpMany = 100
	// prepareRetry is the pause after a vain attempt to prepare the schema.
	prepareRetry = time.Second
	// tellAgain is after how long a failure that lasts is reported once more.
	tellAgain = time.Minute
)

// Run prepares the schema and then cleans up: it deletes counters on which nothing weighs any more, a bounded part of
// the table at a time. Counters are decided upon whether or not it runs. It returns when ctx ends; what fails is
// reported and tried again.
func (s *Store) Run(ctx context.Context) error {
	var reported string
	var at time.Time
	for {
		err := s.Prepare(ctx)
		if err == nil {
			s.readyOnce.Do(func() { close(s.ready) })
			break
		}
		if text := err.Error(); text != reported || time.Since(at) >= tellAgain {
			s.report("Preparing the counters failed, trying again each second", err)
			reported, at = text, time.Now()
		}
		if !pause(ctx, jittered(prepareRetry)) {
			return nil
		}
	}
	page := int64(-1)
	for pause(ctx, jittered(s.interval)) {
		next, err := s.cleanUpRound(ctx, page)
		if err != nil {
			s.report("Cleaning up counters failed", err)
		}
		page = next
	}
	return nil
}

func (s *Store) report(message string, err error) {
	if s.logger != nil && err != nil {
		s.logger.Warn(message, "error", err)
	}
}

// cleanUpRound goes on from a page while there is much to delete, once around the table at most, and returns where to
// go on the next time. A negative page begins anywhere, so that replicas do not all begin at the front.
func (s *Store) cleanUpRound(ctx context.Context, page int64) (next int64, err error) {
	for read := int64(0); ; read += cleanUpPages {
		pages, deleted, err := s.cleanUp(ctx, max(page, 0))
		if err != nil || pages == 0 {
			return page, err
		}
		if page < 0 {
			page = rand.Int64N(pages)
			continue
		}
		if page += cleanUpPages; page >= pages {
			page = 0
		}
		if deleted < cleanUpMany || read+cleanUpPages >= pages {
			return page, nil
		}
	}
}

// cleanUp deletes what no longer weighs on cleanUpPages pages. It returns the size of the table in pages, 0 if another
// replica is at it.
func (s *Store) cleanUp(ctx context.Context, page int64) (pages, deleted int64, err error) {
	st := statement{
		sql:    s.sql.cleanUp,
		oids:   []uint32{pgtype.Int8OID, pgtype.Int8OID, pgtype.Int8OID},
		params: [][]byte{encodeInt8(page), encodeInt8(cleanUpPages), s.now()},
	}
	row, err := s.run(ctx, st)
	if err != nil {
		return 0, 0, fmt.Errorf("cleaning up: %w", err)
	}
	if len(row) != 2 {
		return 0, 0, classify(fmt.Errorf("cleaning up: %w: %d columns, want 2", errReply, len(row)))
	}
	if row[0] == nil {
		return 0, 0, nil
	}
	if pages, err = decodeInt8(row[0]); err == nil {
		deleted, err = decodeInt8(row[1])
	}
	return pages, deleted, classify(err)
}

// jittered is d, give or take a fifth, so that replicas that started together do not act together.
func jittered(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}

// pause reports whether the pause ended before ctx did.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
