package testkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// RegistryOptions choose how a registry serves. The zero value is plain HTTP without
// authentication on a free port of 127.0.0.1.
type RegistryOptions struct {
	Addr string // host:port
	// Cert and Key are PEM files; both or none.
	Cert, Key string
	// ClientCA, with Cert, is the PEM file of who certifies clients; others are refused.
	ClientCA string
	// Htpasswd is a file with bcrypt hashes.
	Htpasswd string
	// Tokens, if not nil, is who the registry sends clients to.
	Tokens *TokenServer
}

// Registry is a CNCF distribution registry with its data in a scratch directory.
type Registry struct {
	Addr string // host:port
	stop func() error
}

// StartRegistry starts a registry that ends with the test.
func StartRegistry(t testing.TB, o RegistryOptions) *Registry {
	t.Helper()
	r, err := NewRegistry(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// NewRegistry starts a registry that keeps its data below dir, and returns when it
// answers.
func NewRegistry(dir string, o RegistryOptions) (*Registry, error) {
	exe, err := FindBin("tools", "registry")
	if err != nil {
		return nil, err
	}
	if o.Addr == "" {
		if o.Addr, err = freeAddr(); err != nil {
			return nil, err
		}
	}
	config := filepath.Join(dir, "registry.yml")
	if err := os.WriteFile(config, o.config(dir), 0o600); err != nil {
		return nil, err
	}
	logPath := filepath.Join(dir, "registry.log")
	log, err := os.Create(logPath)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(exe, "serve", config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	// The signal is sent when the thread ends that started the program, so that has to live as
	// long.
	started, exit := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			exit <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	r := &Registry{Addr: o.Addr}
	r.stop = func() error {
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		<-exit
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := net.Dial("tcp", o.Addr); err == nil {
			return r, c.Close()
		}
		select {
		case <-tick.C:
			continue
		case err = <-exit:
		case <-ctx.Done():
			err = errors.Join(ctx.Err(), r.stop())
		}
		out, _ := os.ReadFile(logPath)
		return nil, fmt.Errorf("registry on %s: %w\n%s", o.Addr, err, out)
	}
}

// config is the configuration file of a registry that keeps its data below dir.
func (o RegistryOptions) config(dir string) []byte {
	var c bytes.Buffer
	fmt.Fprintf(&c, "version: 0.1\nlog: {level: warn, accesslog: {disabled: true}}\n")
	fmt.Fprintf(&c, "storage: {filesystem: {rootdirectory: %q}, delete: {enabled: true}}\n", filepath.Join(dir, "data"))
	fmt.Fprintf(&c, "http:\n  addr: %q\n", o.Addr)
	if o.Cert != "" {
		fmt.Fprintf(&c, "  tls: {certificate: %q, key: %q", o.Cert, o.Key)
		if o.ClientCA != "" {
			fmt.Fprintf(&c, ", clientcas: [%q]", o.ClientCA)
		}
		fmt.Fprintf(&c, "}\n")
	}
	if s := o.Tokens; s != nil {
		fmt.Fprintf(&c, "auth: {token: {realm: %q, service: %q, issuer: %q, rootcertbundle: %q}}\n", s.Realm, s.Service, s.Issuer, s.Cert)
	}
	if o.Htpasswd != "" {
		fmt.Fprintf(&c, "auth: {htpasswd: {realm: test, path: %q}}\n", o.Htpasswd)
	}
	return c.Bytes()
}

// Close ends the registry.
func (r *Registry) Close() error { return r.stop() }

// freeAddr asks the kernel for a port.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
