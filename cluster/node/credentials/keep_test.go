package credentials

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/keyutil"
)

func TestMain(m *testing.M) {
	// The other one sleeps until some time after the last error, which may be of another bubble
	// with another clock.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// Certificates are replaced before they end, for as long as the agent runs.
func TestCertificatesAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		kube := fake.NewClientset()
		signAll(t, kube)
		node := Node{Name: "two", log: slog.New(slog.DiscardHandler), dir: t.TempDir()}
		key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
		template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:two", Organization: []string{"system:nodes"}}}
		client := node.pair(node.clientFile())
		if _, err := client.Update(sign(t, template, key.Public()), must(keyutil.MarshalPrivateKeyToPEM(key))(t)); err != nil {
			t.Fatal(err)
		}
		keeper := must(node.Keep(kube, func() []corev1.NodeAddress {
			return []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.2"}}
		}))(t)
		done := make(chan struct{})
		go func() { defer close(done); _ = keeper.Run(ctx) }()
		before := string(must(os.ReadFile(node.clientFile()))(t))
		for range 3 {
			time.Sleep(lifetime)
			now := string(must(os.ReadFile(node.clientFile()))(t))
			if now == before {
				t.Error("the client certificate is the same after its lifetime")
			}
			before = now
			if err := node.Check(time.Now()); err != nil {
				t.Error(err)
			}
			if c := keeper.Serving(); c == nil || c.Leaf.NotAfter.Before(time.Now()) || len(c.Leaf.IPAddresses) != 1 {
				t.Errorf("serving certificate: %+v", c)
			}
		}
		stop()
		<-done
		time.Sleep(lifetime) // upstream's manager looks at its end only when a renewal is due
	})
}

// A damaged serving certificate is asked for again, and keeps no agent from its work.
func TestADamagedServingCertificate(t *testing.T) {
	dir := t.TempDir()
	node := Node{Name: "two", log: slog.New(slog.DiscardHandler), dir: dir}
	for _, name := range []string{"client.pem", "serving.pem"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k, err := node.Keep(fake.NewClientset(), func() []corev1.NodeAddress { return nil })
	if err != nil || k.Serving() != nil {
		t.Errorf("%v, %v", k, err)
	}
	if node.Check(time.Now()) == nil {
		t.Error("a damaged client certificate counts as good")
	}
}

const lifetime = 20 * time.Minute

// signAll has a fake API sign all requests.
func signAll(t *testing.T, kube *fake.Clientset) {
	signBy(t, kube, func(r *x509.CertificateRequest) []byte { return sign(t, r, r.PublicKey) })
}

// signBy has a fake API give all requests the certificates that sign makes, and select requests by
// name.
func signBy(t *testing.T, kube *fake.Clientset, sign func(*x509.CertificateRequest) []byte) {
	var mu sync.Mutex
	made := map[string]certificatesv1.CertificateSigningRequest{}
	kube.PrependReactor("create", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		csr := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest).DeepCopy()
		csr.Name = fmt.Sprint(csr.GenerateName, len(made))
		block, _ := pem.Decode(csr.Spec.Request)
		request := must(x509.ParseCertificateRequest(block.Bytes))(t)
		csr.Status.Certificate = sign(request)
		csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue,
		}}
		made[csr.Name] = *csr
		return true, csr, nil
	})
	kube.PrependReactor("list", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		name, _ := a.(clienttesting.ListAction).GetListRestrictions().Fields.RequiresExactMatch("metadata.name")
		return true, &certificatesv1.CertificateSigningRequestList{Items: []certificatesv1.CertificateSigningRequest{made[name]}}, nil
	})
}

func sign(t *testing.T, request *x509.CertificateRequest, public any) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: request.Subject, IPAddresses: request.IPAddresses, DNSNames: request.DNSNames,
		NotBefore: time.Now(), NotAfter: time.Now().Add(lifetime),
	}
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must(x509.CreateCertificate(rand.Reader, template, template, public, key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
