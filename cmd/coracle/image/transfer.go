package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/bar"
	"github.com/coracle-project/coracle/cmd/coracle/output"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// credentials are the flags for a registry's.
type credentials struct {
	user          string
	passwordStdin bool
}

func (k *credentials) define(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&k.user, "username", "u", "", "user name at the registry; with --password-stdin")
	cmd.Flags().BoolVar(&k.passwordStdin, "password-stdin", false, "read the password from standard input")
}

// read returns nil if the daemon is to use what it has for the registry. A password is
// no flag: every user of the machine can read those.
func (k *credentials) read(in io.Reader) (*imagesv1.Credentials, error) {
	if (k.user != "") != k.passwordStdin {
		return nil, errors.New("--username and --password-stdin: give both or none")
	}
	if k.user == "" {
		return nil, nil
	}
	line, err := bufio.NewReader(io.LimitReader(in, 64<<10)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read password: %w", err)
	}
	return &imagesv1.Credentials{Username: k.user, Password: strings.TrimRight(line, "\r\n")}, nil
}

// stream is what Pull and Push answer with.
type stream interface {
	Recv() (*imagesv1.Progress, error)
}

// follow shows progress until the end, and returns the last message.
func follow(s stream, p *bar.Progress) (last *imagesv1.Progress, err error) {
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			p.End()
			return last, nil
		}
		if err != nil {
			p.Abort()
			return nil, err
		}
		for _, l := range m.GetLayers() {
			p.Part(int(l.GetPlace()), bar.Part{Name: short(l.GetDigest()), Done: l.GetDone(), Total: l.GetTotal(), Complete: l.GetComplete()})
		}
		p.At(m.GetDone(), m.GetTotal())
		for _, n := range m.GetNotes() {
			p.Note(n)
		}
		last = m
	}
}

func (i *images) pullCommand() *cobra.Command {
	var format output.Format
	var creds credentials
	cmd := &cobra.Command{
		Use:   "pull IMAGE...",
		Short: "fetch images from their registries",
		Long: `Fetch images from their registries. Progress goes to standard error: on a terminal a bar
for each layer and one for all, else a line now and then. An interrupted pull leaves no
partial image.`,
		Example: `  coracle image pull docker.io/library/busybox:1.36
  coracle image pull registry.example/app@sha256:0e4d…
  pass show registry | coracle image pull -u me --password-stdin registry.example/app:2`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := creds.read(cmd.InOrStdin())
			if err != nil {
				return err
			}
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				got, err := pullAll(ctx, c, args, k, cmd.ErrOrStderr())
				if err != nil && len(got) == 0 {
					return err
				}
				return errors.Join(i.daemon.Plain(err), format.Print(cmd.OutOrStdout(), got, func(w io.Writer) { nameRows(w, got) }))
			})
		},
	}
	creds.define(cmd)
	format.Define(cmd)
	return cmd
}

// pullAll returns the images that were pulled, also on error.
func pullAll(ctx context.Context, c imagesv1.ImagesClient, names []string, k *imagesv1.Credentials, progress io.Writer) ([]picture, error) {
	var got []picture
	for _, name := range names {
		s, err := c.Pull(ctx, &imagesv1.PullRequest{Image: name, Credentials: k})
		if err != nil {
			return got, err
		}
		last, err := follow(s, bar.New(progress, "pull "+name))
		if err != nil {
			return got, err
		}
		got = append(got, pictureOf(last.GetImage()))
	}
	return got, nil
}

// sent is the answer of push.
type sent struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

func (i *images) pushCommand() *cobra.Command {
	var format output.Format
	var creds credentials
	cmd := &cobra.Command{
		Use:   "push IMAGE [NAME]",
		Short: "send an image to a registry, under its name or another",
		Long: `Send an image to a registry, under its name or another. Blobs that the registry already
has in the repository that this image came from are not sent again. Of an image for
several platforms, this machine's is sent.

Without --username, push uses coracled's credentials for the registry.`,
		Example: `  coracle image push registry.example/team/app:2
  coracle image push 4bcff63911fc registry.example/team/app:2
  pass show registry | coracle image push -u me --password-stdin registry.example/app:2`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: i.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := creds.read(cmd.InOrStdin())
			if err != nil {
				return err
			}
			to := ""
			if len(args) == 2 {
				to = args[1]
			}
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				s, err := c.Push(ctx, &imagesv1.PushRequest{Image: args[0], To: to, Credentials: k})
				if err != nil {
					return err
				}
				last, err := follow(s, bar.New(cmd.ErrOrStderr(), "push "+args[len(args)-1]))
				if err != nil {
					return err
				}
				done := sent{last.GetName(), last.GetDigest()}
				return format.Print(cmd.OutOrStdout(), done, func(w io.Writer) { output.Row(w, done.Digest, done.Name) })
			})
		},
	}
	creds.define(cmd)
	format.Define(cmd)
	return cmd
}

// nameRows is a short answer about images: id and names.
func nameRows(w io.Writer, all []picture) {
	for _, p := range all {
		output.Row(w, p.ID, strings.Join(p.names(), ", "))
	}
}
