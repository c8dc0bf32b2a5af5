package apiserver

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/cluster/pki"
)

// broken returns options for a server in a directory of its own, changed by change.
func broken(t *testing.T, change func(*Options)) Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "api")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	o, err := testOptions(dir)
	if err != nil {
		t.Fatal(err)
	}
	change(&o)
	return o
}

func TestOptionsThatCannotBeUsed(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"bind address", func(o *Options) {
			o.BindAddress = "localhost"
		}, `--bind-address "localhost" is no IP address, such as 127.0.0.1 or 0.0.0.0`},
		{"port", func(o *Options) { o.Port = 70000 }, "--port 70000 is not between 0 and 65535"},
		{"network", func(o *Options) { o.ServiceCIDR = "10.96.0.0" }, `--service-cidr "10.96.0.0" is no network, such as 10.96.0.0/16`},
		{"host bits", func(o *Options) { o.ServiceCIDR = "10.96.0.1/16" }, `--service-cidr "10.96.0.1/16" is no network, such as 10.96.0.0/16`},
		{"large network", func(o *Options) { o.ServiceCIDR = "10.0.0.0/8" }, "choose one of 2^3 to 2^20"},
		{"large second network", func(o *Options) {
			o.ServiceCIDR = "10.96.0.0/16,fd96::/64"
		}, "--service-cidr fd96::/64 has room for 2^64 addresses"},
		{"second of the same family", func(o *Options) {
			o.ServiceCIDR = "10.96.0.0/16,10.97.0.0/16"
		}, "--service-cidr 10.96.0.0/16,10.97.0.0/16: give one network, or one of each family"},
		{"third network", func(o *Options) {
			o.ServiceCIDR = "10.96.0.0/16,fd96::/112,fd97::/112"
		}, "give one network, or one of each family"},
		{"mapped network", func(o *Options) {
			o.ServiceCIDR = "10.96.0.0/16,::ffff:10.97.0.0/112"
		}, `--service-cidr "::ffff:10.97.0.0/112" is no network`},
		{"nothing after the comma", func(o *Options) { o.ServiceCIDR = "10.96.0.0/16," }, `--service-cidr "" is no network`},
		{"advertised address", func(o *Options) { o.AdvertiseAddress = "me" }, "is no IP address"},
		{"token file", func(o *Options) { o.TokenFile = "/nonexistent" }, "/nonexistent: no such file or directory"},
		{"nothing", func(o *Options) { *o = Options{} }, "must be given"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := New(broken(t, test.change)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
}

func TestStartsThatFailSayWhatToDo(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	garbage := func(path string) {
		if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"port taken", func(o *Options) { o.Port = taken.Addr().(*net.TCPAddr).Port }, "already; stop it, or choose another --port"},
		{"another machine's address", func(o *Options) {
			o.BindAddress = "192.0.2.1"
		}, "192.0.2.1:0 is no address of this machine; choose another --bind-address"},
		{"etcd's directory is no directory", func(o *Options) { garbage(filepath.Join(o.Root, "etcd")) }, "cannot make a directory for etcd"},
		{"etcd's data are damaged", func(o *Options) {
			snap := filepath.Join(o.Root, "etcd", "member", "snap")
			if err := os.MkdirAll(snap, 0o700); err != nil {
				t.Fatal(err)
			}
			garbage(filepath.Join(snap, "db"))
		}, "move it away to begin with an empty cluster"},
		{"no etcd there", func(o *Options) { o.EtcdServers = []string{"http://" + taken.Addr().String()} }, "does not answer"},
		{"serving certificate damaged", func(o *Options) { garbage(o.PKI.Serving) }, "remove the file to get a new one at the next start"},
		{"authority lost", func(o *Options) { _ = os.Remove(o.PKI.CACert) }, "no such file or directory"},
		{"token key damaged", func(o *Options) { garbage(o.PKI.ServiceAccountKey) }, "to get a new one"},
		{"token file damaged", func(o *Options) {
			o.TokenFile = filepath.Join(o.Root, "tokens")
			garbage(o.TokenFile)
		}, "each line is token,user,uid"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := New(broken(t, test.change))
			if err != nil {
				t.Fatal(err)
			}
			err = s.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %s", err, test.want)
			}
			select {
			case <-s.Ready():
				t.Error("it says that it is ready")
			default:
			}
		})
	}
}

// What the kubernetes Service's endpoint is: an address that pods reach, or none.
func TestPublishedAddresses(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		public  string
		held    bool
	}{
		"loopback alone":           {Options{}, "127.0.0.1", false},
		"loopback":                 {Options{HoldServiceAddress: true}, "10.96.0.1", true},
		"loopback of IPv6":         {Options{HoldServiceAddress: true, BindAddress: "::1", ServiceCIDR: "fd96::/112"}, "fd96::1", true},
		"loopback, two networks":   {Options{HoldServiceAddress: true, ServiceCIDR: "10.96.0.0/16,fd96::/112"}, "10.96.0.1", true},
		"a real address":           {Options{HoldServiceAddress: true, BindAddress: "192.0.2.1"}, "192.0.2.1", false},
		"what is to be advertised": {Options{HoldServiceAddress: true, AdvertiseAddress: "192.0.2.2"}, "192.0.2.2", false},
	} {
		a, err := test.options.resolve()
		if err != nil || a.public.String() != test.public || a.held != test.held {
			t.Errorf("%s: %v, held %t, %v; want %s, %t", name, a.public, a.held, err, test.public, test.held)
		}
		hosts, err := test.options.Hosts()
		if err != nil || !slices.Contains(hosts, test.public) || !slices.Contains(hosts, "127.0.0.1") {
			t.Errorf("%s: the certificate is for %v, %v", name, hosts, err)
		}
	}
}

func TestHosts(t *testing.T) {
	hosts, err := Options{BindAddress: "10.1.2.3", ServiceCIDR: "10.0.8.0/24"}.Hosts()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"127.0.0.1", "localhost", "10.1.2.3", "10.0.8.1", "kubernetes.default.svc"} {
		if !slices.Contains(hosts, want) {
			t.Errorf("%s is missing in %v", want, hosts)
		}
	}
	if _, err := pki.Ensure(t.TempDir(), "https://10.1.2.3:6443", hosts, nil); err != nil {
		t.Error(err)
	}
}
