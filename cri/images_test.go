package cri

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/image"
)

func anImage() image.Image {
	return image.Image{
		ID:          digest.FromString("config"),
		RepoTags:    []string{"reg.example/web:1", "reg.example/web:2"},
		RepoDigests: []string{"reg.example/web@" + digest.FromString("manifest").String()},
		Size:        1000,
		Layers:      []digest.Digest{digest.FromString("layer")},
		Config:      ocispec.ImageConfig{User: "33:34", Env: []string{"A=1"}},
	}
}

func spec(ref string) *runtimeapi.ImageSpec { return &runtimeapi.ImageSpec{Image: ref} }

func wireImage() *runtimeapi.Image {
	img := anImage()
	return &runtimeapi.Image{
		Id: img.ID.String(), RepoTags: img.RepoTags, RepoDigests: img.RepoDigests, Size: 1000,
		Uid: &runtimeapi.Int64Value{Value: 33}, Spec: spec(img.ID.String()),
	}
}

func TestPullImage(t *testing.T) {
	e := serve(t, &double{images: []image.Image{anImage()}})
	resp, err := e.image.PullImage(t.Context(), &runtimeapi.PullImageRequest{
		Image: spec("reg.example/web:1"),
		Auth:  &runtimeapi.AuthConfig{Username: "u", Password: "p", IdentityToken: "i", RegistryToken: "r"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if resp.ImageRef != anImage().ID.String() {
		t.Errorf("ref %q", resp.ImageRef)
	}
	want := []any{"reg.example/web:1", image.Auth{Username: "u", Password: "p", IdentityToken: "i", RegistryToken: "r"}}
	if diff := cmp.Diff(want, e.last(t).args); diff != "" {
		t.Error(diff)
	}
}

func TestPullForAHandler(t *testing.T) {
	var unpacked []string
	fail := error(nil)
	e := serve(t, &double{images: []image.Image{anImage()}}, func(_ *Config, d *Deps) {
		d.Unpack = func(_ context.Context, handler string, img *image.Image) error {
			unpacked = append(unpacked, handler+" "+img.ID.String())
			return fail
		}
	})
	pull := func(handler string) error {
		_, err := e.image.PullImage(t.Context(),
			&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "reg.example/web:1", RuntimeHandler: handler}})
		return err
	}
	for _, handler := range []string{"", "coracle"} {
		if err := pull(handler); err != nil {
			t.Errorf("pull for %q: %v", handler, err)
		}
	}
	if want := []string{"coracle " + anImage().ID.String()}; !slices.Equal(unpacked, want) {
		t.Errorf("unpacked for %q, want %q", unpacked, want)
	}
	if err := pull("kata"); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `"kata" is not configured`) {
		t.Errorf("pull for an unknown handler: %v", err)
	}
	fail = errors.New("no space")
	if err := pull("coracle"); err == nil {
		t.Error("pulled, though it was not unpacked")
	}
}

func TestCredentials(t *testing.T) {
	encoded := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for name, tt := range map[string]struct {
		auth *runtimeapi.AuthConfig
		ref  string
		want image.Auth
		code codes.Code
	}{
		"none":            {nil, "web", image.Auth{}, codes.OK},
		"encoded":         {&runtimeapi.AuthConfig{Auth: encoded("u:p:q")}, "web", image.Auth{Username: "u", Password: "p:q"}, codes.OK},
		"encoded, padded": {&runtimeapi.AuthConfig{Auth: encoded("u:p\x00\x00")}, "web", image.Auth{Username: "u", Password: "p"}, codes.OK},
		"not base64":      {&runtimeapi.AuthConfig{Auth: "s3cret!"}, "web", image.Auth{}, codes.InvalidArgument},
		"no colon":        {&runtimeapi.AuthConfig{Auth: encoded("s3cret")}, "web", image.Auth{}, codes.InvalidArgument},
		"same server": {
			&runtimeapi.AuthConfig{Username: "u", ServerAddress: "reg.example:5000"}, "reg.example:5000/web",
			image.Auth{Username: "u"},
			codes.OK,
		},
		"same server, url": {
			&runtimeapi.AuthConfig{Username: "u", ServerAddress: "https://reg.example/v2/"}, "reg.example/web",
			image.Auth{Username: "u"},
			codes.OK,
		},
		"hub": {
			&runtimeapi.AuthConfig{Username: "u", ServerAddress: "https://index.docker.io/v1/"}, "busybox",
			image.Auth{Username: "u"},
			codes.OK,
		},
		"other server":  {&runtimeapi.AuthConfig{Username: "u", ServerAddress: "other.example"}, "reg.example/web", image.Auth{}, codes.OK},
		"bad server":    {&runtimeapi.AuthConfig{Username: "u", ServerAddress: "https://%zz"}, "reg.example/web", image.Auth{}, codes.OK},
		"bad reference": {&runtimeapi.AuthConfig{Username: "u", ServerAddress: "reg.example"}, "UPPER", image.Auth{}, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := credentials(tt.auth, tt.ref)
			if status.Code(err) != tt.code || got != tt.want {
				t.Errorf("%+v, %v; want %+v, %v", got, err, tt.want, tt.code)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error tells the secret: %v", err)
			}
		})
	}
}

func TestListImages(t *testing.T) {
	e := serve(t, &double{images: []image.Image{anImage()}, fail: map[string]error{}})
	for name, tt := range map[string]struct {
		filter *runtimeapi.ImageFilter
		want   []*runtimeapi.Image
	}{
		"all":     {nil, []*runtimeapi.Image{wireImage()}},
		"by name": {&runtimeapi.ImageFilter{Image: spec("reg.example/web:1")}, []*runtimeapi.Image{wireImage()}},
		"absent":  {&runtimeapi.ImageFilter{Image: spec("reg.example/other:1")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := e.image.ListImages(t.Context(), &runtimeapi.ListImagesRequest{Filter: tt.filter})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, resp.Images, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
	e.fail["Get"] = image.ErrInvalidReference
	_, err := e.image.ListImages(t.Context(), &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: spec("::")}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v, want InvalidArgument", err)
	}
}

func TestImageStatus(t *testing.T) {
	e := serve(t, &double{images: []image.Image{anImage()}, fail: map[string]error{}})
	resp, err := e.image.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: spec("reg.example/web:1"), Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wireImage(), resp.Image, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	var got imageInfo
	if err := json.Unmarshal([]byte(resp.Info["info"]), &got); err != nil {
		t.Fatal(err)
	}
	if got.LayerCount != 1 || got.ImageSpec.Config.User != "33:34" {
		t.Errorf("info %+v", got)
	}
	resp, err = e.image.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: spec("absent")})
	if err != nil || resp.Image != nil || resp.Info != nil {
		t.Errorf("absent image: %v, %v", resp, err)
	}
	e.fail["Get"] = image.ErrInvalidReference
	if _, err = e.image.ImageStatus(t.Context(),
		&runtimeapi.ImageStatusRequest{Image: spec("::")}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v, want InvalidArgument", err)
	}
}

func TestImageUser(t *testing.T) {
	for in, want := range map[string]struct {
		uid  *int64
		name string
	}{
		"":          {int64p(0), ""},
		":5":        {int64p(0), ""},
		"1000":      {int64p(1000), ""},
		"1000:50":   {int64p(1000), ""},
		"www":       {nil, "www"},
		"www:users": {nil, "www"},
		// No container can have these (userdb.Numeric), and the kubelet refuses a name it cannot
		// verify.
		"4294967296":          {int64p(1 << 32), ""},
		"9223372036854775808": {nil, "9223372036854775808"},
	} {
		uid, name := imageUser(in)
		if name != want.name || (uid == nil) != (want.uid == nil) || uid != nil && uid.Value != *want.uid {
			t.Errorf("%q: %v, %q", in, uid, name)
		}
	}
}

func TestRemoveImage(t *testing.T) {
	e := serve(t, &double{fail: map[string]error{}})
	for err, want := range map[error]codes.Code{
		nil:                 codes.OK,
		image.ErrNotFound:   codes.OK,
		image.ErrLayerInUse: codes.FailedPrecondition,
	} {
		e.fail["RemoveImage"] = err
		if _, got := e.image.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: spec("web")}); status.Code(got) != want {
			t.Errorf("%v became %v", err, got)
		}
	}
}
