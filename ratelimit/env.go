package ratelimit

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// OptionsFromEnv reads the environment that Weir's pod template fragment sets:
//
//	WEIR_TABLE            the table, "default" if unset
//	WEIR_NAMESPACE        the pod's namespace
//	WEIR_WORKLOAD         the name of its Deployment, or group/kind/name
//	WEIR_TRUSTED_PROXIES  prefixes or addresses, separated by commas
//	POD_NAME              the pod's name
//
// Nothing else in this package reads the environment.
func OptionsFromEnv() (Options, error) {
	proxies, err := parsePrefixes(os.Getenv("WEIR_TRUSTED_PROXIES"))
	if err != nil {
		return Options{}, fmt.Errorf("reading WEIR_TRUSTED_PROXIES: %w", err)
	}
	return Options{
		Namespace:      os.Getenv("WEIR_NAMESPACE"),
		Workload:       os.Getenv("WEIR_WORKLOAD"),
		Table:          os.Getenv("WEIR_TABLE"),
		TrustedProxies: proxies,
		Pod:            os.Getenv("POD_NAME"),
	}, nil
}

func parsePrefixes(list string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		if addr, err := netip.ParseAddr(item); err == nil {
			prefixes = append(prefixes, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor a prefix such as 10.0.0.0/8", item)
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes, nil
}
