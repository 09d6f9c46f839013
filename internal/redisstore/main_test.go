package redisstore

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

// Tests end servers on purpose; the client's log of it would hide what failed.
func TestMain(m *testing.M) {
	logging.Disable()
	os.Exit(m.Run())
}
