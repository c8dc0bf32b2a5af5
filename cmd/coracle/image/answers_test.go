package image

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// execute runs a command below `coracle image` on the daemon at a socket.
func execute(t *testing.T, socket string, args ...string) (out string, err error) {
	t.Helper()
	cmd := Command(func() string { return socket }, nil, func(*cobra.Command, *daemon.Daemon, string) (string, error) { return "id", nil })
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var b bytes.Buffer
	cmd.SetOut(&b)
	cmd.SetErr(t.Output())
	cmd.SetIn(strings.NewReader(""))
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return b.String(), err
}

// Regression: what had been done was not said, because the format of the answer was not known.
func TestUnknownFormat(t *testing.T) {
	t.Setenv(daemon.AddressVariable, "")
	archive := filepath.Join(t.TempDir(), "archive")
	if err := os.WriteFile(archive, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"remove", "a:1"},
		{"prune"},
		{"pull", "a:1"},
		{"push", "a:1"},
		{"load", "-f", archive},
		{"import", "-f", archive, "a:1"},
		{"verify", "--repair", "drop"},
		{"commit", "container", "a:1"},
	} {
		// No daemon answers there, which would be the error if it was asked.
		_, err := execute(t, archive, append(args, "-o", "xml")...)
		if err == nil || err.Error() != `invalid argument "xml" for "-o, --output" flag: it is table, json or yaml` {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// halfway is a daemon that removes and pulls some images.
type halfway struct {
	imagesv1.UnimplementedImagesServer
}

var errHalfway = status.Error(codes.NotFound, "no such image")

func (halfway) Remove(_ context.Context, r *imagesv1.RemoveRequest) (*imagesv1.RemoveResponse, error) {
	if r.GetImage() != "a:1" {
		return nil, errHalfway
	}
	return &imagesv1.RemoveResponse{Untagged: []string{"a:1"}}, nil
}

func (halfway) Pull(r *imagesv1.PullRequest, s imagesv1.Images_PullServer) error {
	if r.GetImage() != "a:1" {
		return errHalfway
	}
	return s.Send(&imagesv1.Progress{Image: &imagesv1.Image{Id: "sha256:0a", Tags: []string{"a:1"}}})
}

// Regression: when one of several images failed, what had been done with those before was not said.
func TestAnswerBeforeAnError(t *testing.T) {
	t.Setenv(daemon.AddressVariable, "")
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	imagesv1.RegisterImagesServer(server, halfway{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	}()
	for _, command := range []string{"remove", "pull"} {
		out, err := execute(t, socket, command, "a:1", "b:1")
		if err == nil || err.Error() != "no such image" || !strings.Contains(out, "a:1") {
			t.Errorf("%s of two images: %q, %v", command, out, err)
		}
		if out, err := execute(t, socket, command, "b:1", "a:1"); err == nil || err.Error() != "no such image" || out != "" {
			t.Errorf("%s that does nothing: %q, %v", command, out, err)
		}
	}
}
