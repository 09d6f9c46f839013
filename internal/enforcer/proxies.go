package enforcer

// notBelieved hears of a request whose peer may be a proxy that nobody named. It is told once.
func (e *Enforcer) notBelieved() {
	if e.counts.disbelieved.Add(1) == 1 {
		e.log.Warn("X-Forwarded-For of a private peer is ignored",
			"hint", "if the peer is a proxy, name it in TrustedProxies: all clients behind it are counted as one")
	}
}
