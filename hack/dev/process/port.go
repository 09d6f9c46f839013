package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports below 32768 are outside the range from which Linux (32768 to 60999) and macOS (from 49152) give ports to
// outgoing connections. A port of that range could be lost while its server is down for a moment: a client that
// keeps dialling it even connects to itself.
const firstPort, lastPort = 10000, 21999

// given holds the ports that this process was given: a server that is about to start does not listen on its port yet.
var given sync.Map

// FreePort returns a TCP port of 127.0.0.1 on which nobody listens, and neither on the ports at the given offsets
// above it (Redis Cluster uses the port 10000 above its own). It returns no port twice.
func FreePort(offsets ...int) (int, error) {
	const attempts = 200
	for range attempts {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		free := available(port)
		for _, offset := range offsets {
			free = free && available(port+offset)
		}
		if _, taken := given.LoadOrStore(port, true); free && !taken {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 in %d attempts between %d and %d", attempts, firstPort, lastPort)
}

func available(port int) bool {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = listener.Close()
	return true
}
