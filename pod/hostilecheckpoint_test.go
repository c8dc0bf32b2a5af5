package pod

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod/checkpoint"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// checkpointImage makes an image of a saved container, whose files change may spoil.
func checkpointImage(t *testing.T, b *bench, m *Manager, change func(dir string)) {
	t.Helper()
	podID, dir, _ := savedPodOf(t, b, m)
	ok(t, m.Remove(t.Context(), podID))
	dir = filepath.Join(dir, "0")
	change(dir)
	layer := []digest.Digest{digest.FromString("checkpoint")}
	b.images["saved"] = image.Image{ID: digest.FromString("saved"), Layers: layer}
	b.contents[layersKey(layer)] = os.DirFS(dir)
}

// rewrite changes one of a checkpoint's JSON files.
func rewrite[T any](t *testing.T, path string, change func(*T)) {
	t.Helper()
	var v T
	ok(t, json.Unmarshal(must[[]byte](t)(os.ReadFile(path)), &v))
	change(&v)
	ok(t, os.WriteFile(path, must[[]byte](t)(json.Marshal(v)), 0o600))
}

// TestCheckpointMayNotNameAnyImage: who makes a pod of a checkpoint image, or the image, does not
// get at other images of the node, which may have been pulled with someone else's credentials.
func TestCheckpointMayNotNameAnyImage(t *testing.T) {
	withCRIU(t)
	private := image.Image{
		ID: digest.FromString("private"), RepoTags: []string{"secret.example/app:1"},
		RepoDigests: []string{"secret.example/app@sha256:2"}, Layers: []digest.Digest{digest.FromString("secrets")},
	}
	private.Config.Cmd = []string{"run"}
	for name, claim := range map[string]func(*checkpoint.Description){
		"by its id": func(c *checkpoint.Description) { c.ImageID, c.ImageRef, c.ImageName = private.ID.String(), "", "" },
		"by its digest": func(c *checkpoint.Description) {
			c.ImageID, c.ImageRef, c.ImageName = "", "secret.example/app@sha256:2", ""
		},
		"by its name": func(c *checkpoint.Description) { c.ImageID, c.ImageRef, c.ImageName = "", "", "secret.example/app:1" },
		"by its id, with the name of an allowed one": func(c *checkpoint.Description) {
			c.ImageID, c.ImageRef, c.ImageName = private.ID.String(), "public.example/a", "public.example/a"
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			m, _ := b.manager()
			ctx := t.Context()
			checkpointImage(t, b, m, func(dir string) { rewrite(t, dir+"/config.dump", claim) })
			for _, ref := range []string{private.ID.String(), private.RepoTags[0], private.RepoDigests[0]} {
				b.images[ref] = private
			}
			before := slices.Sorted(maps.Keys(b.images))
			m.checkpoints.Restore, m.checkpoints.RestoreBases = true, []string{"public.example/*", "busybox@*"}
			podID := must[string](t)(m.Run(ctx, podConfig("q")))
			c := podconfig.Container{Name: "one", Image: "saved"}
			_, refused := m.Create(ctx, podID, c)
			if !errors.Is(refused, errdefs.ErrNotFound) || !strings.Contains(refused.Error(), "runtime.restore_bases") {
				t.Errorf("%v, want a refusal", refused)
			}
			// It is not even told whether the image is here.
			for _, ref := range []string{private.ID.String(), private.RepoTags[0], private.RepoDigests[0]} {
				delete(b.images, ref)
			}
			if _, err := m.Create(ctx, podID, c); err == nil || err.Error() != refused.Error() {
				t.Errorf("an image that is here: %v\none that is not: %v", refused, err)
			}
			for _, ref := range []string{private.ID.String(), private.RepoTags[0], private.RepoDigests[0]} {
				b.images[ref] = private
			}
			// The attack wins where the operator lets checkpoints name that image.
			m.checkpoints.RestoreBases = []string{"secret.example/*"}
			id := must[string](t)(m.Create(ctx, podID, c))
			if layers := b.layers[id]; !slices.Contains(layers, private.Layers[0]) {
				t.Errorf("control: root of %v", layers)
			}
			// No name comes to be or leads elsewhere (CVE-2026-50195).
			if after := slices.Sorted(maps.Keys(b.images)); !slices.Equal(before, after) {
				t.Errorf("names of images were %q, are %q", before, after)
			}
			ok(t, m.Remove(ctx, podID))
			idle(t, m)
			b.nothingLeft()
		})
	}
}

// TestCheckpointBringsNothingAlong: of what a checkpoint says and has, nothing but processes,
// memory and files becomes the container's: no devices by annotations (CVE-2026-53492), labels
// (CVE-2026-53488), mounts or hooks, and no log (CVE-2026-53489).
func TestCheckpointBringsNothingAlong(t *testing.T) {
	withCRIU(t)
	made := func(spoil func(t *testing.T, dir string)) (spec specs.Spec, log string) {
		b := newBench(t)
		m, _ := b.manager()
		ctx := t.Context()
		checkpointImage(t, b, m, func(dir string) { spoil(t, dir) })
		m.checkpoints.Restore, m.checkpoints.RestoreBases = true, []string{"busybox@*"}
		pc := podConfig("q")
		pc.LogDirectory = t.TempDir()
		podID := must[string](t)(m.Run(ctx, pc))
		id := must[string](t)(m.Create(ctx, podID, podconfig.Container{Name: "one", Image: "saved", LogPath: "one/0.log"}))
		ok(t, m.StartContainer(ctx, id))
		spec = *b.bundle(id)
		text := strings.NewReplacer(podID, "POD", id, "CONTAINER", b.state, "STATE").Replace(string(must[[]byte](t)(json.Marshal(spec))))
		spec = specs.Spec{}
		ok(t, json.Unmarshal([]byte(text), &spec))
		if entries := must[[]os.DirEntry](t)(os.ReadDir(filepath.Join(pc.LogDirectory, "one"))); len(entries) > 0 {
			log = entries[0].Name()
		}
		ok(t, m.Remove(ctx, podID))
		idle(t, m)
		b.nothingLeft()
		return spec, log
	}
	plain, _ := made(func(*testing.T, string) {})
	device := specs.LinuxDevice{Path: "/dev/mem", Type: "c", Major: 1, Minor: 1}
	mount := specs.Mount{Destination: "/host", Source: "/", Type: "bind", Options: []string{"rbind"}}
	hostile, log := made(func(t *testing.T, dir string) {
		rewrite(t, filepath.Join(dir, "spec.dump"), func(s *specs.Spec) {
			s.Annotations = maps.Clone(untrusted)
			s.Linux.Devices = append(s.Linux.Devices, device)
			s.Linux.Namespaces = nil
			s.Linux.CgroupsPath = "/elsewhere"
			s.Mounts = append(s.Mounts, mount)
			s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/sh"}}}
			s.Root = &specs.Root{Path: "/"}
			// What a container may take along, so that the test knows that the file was read.
			s.Process.Env = append(s.Process.Env, "FROM=checkpoint")
		})
		rewrite(t, filepath.Join(dir, "config.dump"), func(c *map[string]any) {
			(*c)["labels"], (*c)["annotations"] = untrusted, untrusted
			(*c)["logPath"] = "/etc/shadow"
		})
		for _, name := range []string{"container.log", "log", "0.log", "status"} {
			ok(t, os.Symlink("/etc/shadow", filepath.Join(dir, name)))
		}
	})
	if !slices.Contains(hostile.Process.Env, "FROM=checkpoint") {
		t.Errorf("control: the checkpoint was not read: %q", hostile.Process.Env)
	}
	hostile.Process.Env = slices.DeleteFunc(hostile.Process.Env, func(v string) bool { return v == "FROM=checkpoint" })
	if !sameJSON(t, plain, hostile) {
		t.Errorf("plain:\n%s\nhostile:\n%s", must[[]byte](t)(json.Marshal(plain)), must[[]byte](t)(json.Marshal(hostile)))
	}
	if log != "" {
		t.Errorf("log %q came along", log)
	}
}

func sameJSON(t *testing.T, a, b any) bool {
	t.Helper()
	return string(must[[]byte](t)(json.Marshal(a))) == string(must[[]byte](t)(json.Marshal(b)))
}
