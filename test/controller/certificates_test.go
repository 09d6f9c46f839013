package controller

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// certificates are files of one authority and what it signed for 127.0.0.1, for servers and clients alike.
type certificates struct {
	pool               *x509.CertPool
	ca, cert, key, dir string
}

// newCertificates writes ca.crt, tls.crt and tls.key into a folder, over what is there.
func newCertificates(t *testing.T, dir string) certificates {
	t.Helper()
	now := time.Now()
	template := func(name string, isCA bool) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name},
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
			IsCA: isCA, BasicConstraintsValid: true,
			KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		}
	}
	newKey := func() *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	sign := func(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) []byte {
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	caKey, leafKey := newKey(), newKey()
	authority := template("authority", true)
	der, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	c := certificates{
		pool: x509.NewCertPool(), dir: dir,
		ca: filepath.Join(dir, "ca.crt"), cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key"),
	}
	ca := sign(authority, authority, caKey, caKey)
	c.pool.AppendCertsFromPEM(ca)
	for file, content := range map[string][]byte{
		c.ca:   ca,
		c.cert: sign(template("leaf", false), authority, leafKey, caKey),
		c.key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}
