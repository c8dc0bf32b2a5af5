package daemon

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestSocket(t *testing.T) {
	for _, tc := range []struct{ name, flag, env, want string }{
		{"nothing given", "", "", "/state/coracle.sock"},
		{"environment", "", "/env.sock", "/env.sock"},
		{"flag", "/flag.sock", "/env.sock", "/flag.sock"},
		{"endpoint as the kubelet writes it", "unix:///run/x.sock", "", "/run/x.sock"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(AddressVariable, tc.env)
			d := New(func() string { return "/state/coracle.sock" })
			f := pflag.NewFlagSet("", pflag.ContinueOnError)
			d.Define(f)
			if err := f.Parse([]string{"--address", tc.flag}); err != nil {
				t.Fatal(err)
			}
			if got := d.Socket(); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// server answers Version with an error.
type server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	err error
}

func (s server) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{}, s.err
}

func TestErrorsAreSentences(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"none", nil, ""},
		{"an answer", status.Error(codes.NotFound, "pod x is gone"), "pod x is gone"},
		{"an older daemon", status.Error(codes.Unimplemented, "no such call"), "no such call; the coracled on "},
		{"cancelled there", status.Error(codes.Canceled, "context canceled"), "interrupted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sock")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			s := grpc.NewServer()
			runtimeapi.RegisterRuntimeServiceServer(s, server{err: tc.err})
			go func() { _ = s.Serve(l) }()
			defer s.Stop()
			err = New(func() string { return path }).Call(t.Context(), version)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func version(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{})
	return err
}

func TestNoDaemon(t *testing.T) {
	none := New(func() string { return filepath.Join(t.TempDir(), "none") })
	if err := none.Call(t.Context(), version); err == nil || !strings.HasPrefix(err.Error(), "coracled does not run here: ") {
		t.Error(err)
	}
	err := none.Call(t.Context(), func(context.Context, *grpc.ClientConn) error { return context.Canceled })
	if !errors.Is(err, ErrInterrupted) {
		t.Error(err)
	}
}
