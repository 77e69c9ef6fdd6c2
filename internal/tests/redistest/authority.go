package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Authority is a private certificate authority.
type Authority struct {
	File string             // its certificate, in PEM
	Life time.Duration      // of the certificates that are issued from now on
	Uses []x509.ExtKeyUsage // that they are for

	tb          testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	issued      int64
}

// NewAuthority makes an authority, whose files end with the test, with a certificate that is valid for 90 days, or for another time.
func NewAuthority(tb testing.TB, life ...time.Duration) *Authority {
	tb.Helper()
	a := &Authority{tb: tb, Life: append(life, 90*24*time.Hour)[0], Uses: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, File: filepath.Join(tb.TempDir(), "ca.pem")}
	a.certificate = &x509.Certificate{
		Subject:  pkix.Name{CommonName: "authority " + rand.Text() + " of a test"},
		IsCA:     true,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true,
	}
	a.key = a.issue(a.certificate, a.File)
	return a
}

// Issue returns the files of a certificate with these names, which are host names or IP addresses, and of its key.
func (a *Authority) Issue(names ...string) (certificate, key string) {
	a.tb.Helper()
	dir := a.tb.TempDir()
	certificate, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: strings.Join(names, " ")},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: a.Uses,
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	private, err := x509.MarshalPKCS8PrivateKey(a.issue(template, certificate))
	if err != nil {
		a.tb.Fatal(err)
	}
	a.write(key, "PRIVATE KEY", private)
	return certificate, key
}

// issue signs a certificate, which is written to a file, and returns its key.
func (a *Authority) issue(template *x509.Certificate, file string) *ecdsa.PrivateKey {
	a.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.tb.Fatal(err)
	}
	signer := key // of its own certificate
	if a.key != nil {
		signer = a.key
	}
	a.issued++
	template.SerialNumber = big.NewInt(a.issued)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(a.Life)
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, signer)
	if err != nil {
		a.tb.Fatal(err)
	}
	a.write(file, "CERTIFICATE", der)
	return key
}

func (a *Authority) write(file, kind string, der []byte) {
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.tb.Fatal(err)
	}
}

// Start starts n servers as the function Start does, which speak TLS at these URLs too, with a certificate for 127.0.0.1 and the
// further names. They want a certificate of this authority from each client.
func (a *Authority) Start(n int, names ...string) (servers []*Server, urls []string) {
	a.tb.Helper()
	certificate, key := a.Issue(append([]string{"127.0.0.1"}, names...)...)
	for range n {
		port := fmt.Sprint(FreePort(a.tb))
		servers = append(servers, StartWith(a.tb, nil, "--tls-port", port, "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", a.File))
		urls = append(urls, "rediss://127.0.0.1:"+port)
	}
	return servers, urls
}
