package main

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"
)

const (
	// sentinelLook is how often the file with the Sentinels' password is compared with the one in use.
	sentinelLook = 10 * time.Second
	// sentinelGrace is what requests under way get before the client that they use is closed.
	sentinelGrace = 10 * time.Second
	// sentinelTry bounds one attempt to reach Redis with a new password.
	sentinelTry = 5 * time.Second
)

// sentinelRotation makes a new client when the password for the Sentinels has changed: the driver asks for the one of
// Redis with each connection, but is told that of the Sentinels once.
type sentinelRotation struct {
	redis    *redisOptions
	password string // of the client in use
	client   redis.UniversalClient
	use      func(redis.UniversalClient)
	log      logr.Logger
}

// newSentinelRotation returns one for a client that was just made.
func newSentinelRotation(r *redisOptions, client redis.UniversalClient, use func(redis.UniversalClient), log logr.Logger) (*sentinelRotation, error) {
	password, err := r.sentinelPassword()
	return &sentinelRotation{redis: r, password: password, client: client, use: use, log: log}, err
}

// Start looks at the file until ctx ends, in every replica of the controller.
func (s *sentinelRotation) Start(ctx context.Context) error {
	ticker := time.NewTicker(sentinelLook)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			s.look(ctx)
		}
	}
}

// NeedLeaderElection says that it runs without leadership.
func (s *sentinelRotation) NeedLeaderElection() bool { return false }

// look takes a new password into use once the Sentinels take it: until then the client with the old one goes on.
func (s *sentinelRotation) look(ctx context.Context) {
	password, err := s.redis.sentinelPassword()
	if err != nil || password == s.password {
		return // a file that is being replaced is there the next time
	}
	client, err := s.redis.client()
	if err != nil {
		s.log.Error(err, "Cannot use the new password for the Sentinels")
		return
	}
	trying, cancel := context.WithTimeout(ctx, sentinelTry)
	defer cancel()
	if err := client.Ping(trying).Err(); err != nil {
		_ = client.Close()
		s.log.V(1).Info("Sentinels do not take the new password yet", "error", err.Error())
		return
	}
	former := s.client
	s.use(client)
	s.client, s.password = client, password
	time.AfterFunc(sentinelGrace, func() { _ = former.Close() })
	s.log.Info("Took the new password for the Sentinels into use")
}
