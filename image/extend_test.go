package image

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestExtend(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	a := r.image("a:1", threeLayers(), nil)
	_, err := s.Pull(t.Context(), r.ref("a:1"), PullOptions{})
	must(t, err)
	img, err := s.Extend(t.Context(), r.ref("a:1"), "localhost/more:1", func(c *ocispec.Image) error {
		c.Config.User = ""
		return Change(&c.Config, `ENV B="two words" C=3`)
	}, func(_ context.Context, w io.Writer) error {
		_, err := w.Write(tarOf("more", "1"))
		return err
	})
	must(t, err)
	if !slices.Equal(img.Layers[:3], a.diffIDs) || img.Layers[3] != digest.FromBytes(tarOf("more", "1")) ||
		img.Config.User != "" || !slices.Equal(img.Config.Env, []string{"A=a:1", "B=two words", "C=3"}) {
		t.Errorf("made %+v", img)
	}
	if data, err := os.ReadFile(filepath.Join(s.layers.path(img.Layers[3]), "more")); err != nil || string(data) != "1" {
		t.Errorf("the layer's file: %q, %v", data, err)
	}
	must(t, s.Remove(t.Context(), r.ref("a:1")))
	s.reopen(t)
	if _, err := s.Get("localhost/more:1"); err != nil {
		t.Errorf("without the image that it was made of: %v", err)
	}

	broken := errors.New("the disk is on fire")
	before := s.left(t)
	for name, tc := range map[string]struct {
		from, to string
		change   func(*ocispec.Image) error
		write    func(context.Context, io.Writer) error
		want     error
	}{
		"no such image": {"none", "x:1", nil, nil, ErrNotFound},
		"no name":       {"localhost/more:1", "x@y", nil, nil, ErrInvalidReference},
		"bad change":    {"localhost/more:1", "x:1", func(*ocispec.Image) error { return broken }, nil, broken},
		"bad layer": {"localhost/more:1", "x:1", func(*ocispec.Image) error { return nil }, func(context.Context, io.Writer) error {
			return broken
		}, broken},
		"hostile layer": {"localhost/more:1", "x:1", func(*ocispec.Image) error { return nil }, func(_ context.Context, w io.Writer) error {
			_, err := w.Write(tarOf("../out", "1"))
			return err
		}, ErrInvalidImage},
	} {
		if _, err := s.Extend(t.Context(), tc.from, tc.to, tc.change, tc.write); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
		if s.left(t) != before {
			t.Errorf("%s: left %s", name, s.left(t))
		}
	}
}

func TestKeepUnknown(t *testing.T) {
	original := `{"os":"linux","config":{"User":"a","Healthcheck":{"Test":["x"]},"OnBuild":[]},"container":"abc","rootfs":{"type":"layers"}}`
	made := `{"os":"linux","config":{"Cmd":["x"]},"rootfs":{"type":"layers"}}`
	got, err := keepUnknown([]byte(original), []byte(made))
	must(t, err)
	var c map[string]any
	must(t, json.Unmarshal(got, &c))
	config := c["config"].(map[string]any)
	if c["container"] != "abc" || config["Healthcheck"] == nil || config["User"] != nil || config["OnBuild"] != nil || config["Cmd"] == nil {
		t.Errorf("merged %s", got)
	}
	if got, err := keepUnknown(nil, []byte(made)); err != nil || string(got) != made {
		t.Errorf("nothing to keep: %s, %v", got, err)
	}
}

func TestChange(t *testing.T) {
	c := ocispec.ImageConfig{Env: []string{"A=1", "AB=2"}}
	for _, instruction := range []string{
		`CMD ["/bin/app", "-v"]`, `entrypoint exec app $X`, `ENV A=3 C="x y"`, `EXPOSE 80 53/udp`, `LABEL a.b="c d" e=`,
		`STOPSIGNAL SIGINT`, `USER 1000:1000`, `VOLUME ["/data"]`, `VOLUME /a /b\ c`, `WORKDIR /srv`,
	} {
		if err := Change(&c, instruction); err != nil {
			t.Error(err)
		}
	}
	want := ocispec.ImageConfig{
		Cmd: []string{"/bin/app", "-v"}, Entrypoint: []string{"/bin/sh", "-c", "exec app $X"}, Env: []string{"AB=2", "A=3", "C=x y"},
		ExposedPorts: map[string]struct{}{"80/tcp": {}, "53/udp": {}}, Labels: map[string]string{"a.b": "c d", "e": ""},
		StopSignal: "SIGINT", User: "1000:1000", Volumes: map[string]struct{}{"/data": {}, "/a": {}, "/b c": {}}, WorkingDir: "/srv",
	}
	got, _ := json.Marshal(c)
	if w, _ := json.Marshal(want); string(got) != string(w) {
		t.Errorf("config %s\nwant   %s", got, w)
	}
	for instruction, says := range map[string]string{
		"RUN make": "none of CMD, ENTRYPOINT", "": "none of", "CMD": "missing", "ENV A": "KEY=VALUE", `CMD ["a", 1]`: "JSON",
		`ENV A="b`: "not closed", "WORKDIR srv": "absolute",
	} {
		if err := Change(&c, instruction); !errors.Is(err, ErrInvalidImage) || !strings.Contains(err.Error(), says) {
			t.Errorf("change %q: %v, want one that says %q", instruction, err, says)
		}
	}
}
