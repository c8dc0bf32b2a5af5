package env

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
)

func service(namespace, name, ip string) *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1.ServiceSpec{ClusterIP: ip, Ports: []v1.ServicePort{{Name: "web", Port: 80, Protocol: v1.ProtocolTCP}}},
	}
}

// newResolver returns a resolver over the objects, with its informers synced.
func newResolver(t *testing.T, objects ...runtime.Object) *Resolver {
	t.Helper()
	kube := fake.NewClientset(objects...)
	shared := informers.NewSharedInformerFactory(kube, 0)
	r := New(&client.Set{Kube: kube, Informers: shared}, Options{
		NodeName: "n1", RootDir: t.TempDir(),
		Allocatable: func() v1.ResourceList {
			return v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("1Gi")}
		},
	})
	shared.Start(t.Context().Done())
	shared.WaitForCacheSync(t.Context().Done())
	return r
}

func pod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "p", UID: "u1", Labels: map[string]string{"app": "web"},
			Annotations: map[string]string{"a": "b"},
		},
		Spec: v1.PodSpec{
			NodeName: "n1", ServiceAccountName: "sa", EnableServiceLinks: ptr.To(false),
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}},
			Containers: []v1.Container{{
				Name:      "c",
				Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}},
			}, {Name: "other"}},
		},
	}
}

func field(path string) *v1.EnvVarSource {
	return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
}

func limit(container, what, divisor string) *v1.EnvVarSource {
	return &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{
		ContainerName: container, Resource: what,
		Divisor: resource.MustParse(divisor),
	}}
}

func configKey(name, key string, optional *bool) *v1.EnvVarSource {
	return &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{
		LocalObjectReference: v1.LocalObjectReference{Name: name}, Key: key,
		Optional: optional,
	}}
}

func secretKey(name, key string, optional *bool) *v1.EnvVarSource {
	return &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{
		LocalObjectReference: v1.LocalObjectReference{Name: name}, Key: key,
		Optional: optional,
	}}
}

func fileKey(path, key string, optional *bool) *v1.EnvVarSource {
	return &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "data", Path: path, Key: key, Optional: optional}}
}

func TestResolve(t *testing.T) {
	objects := []runtime.Object{
		&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cm"}, Data: map[string]string{"a": "1", "b": "2"}},
		&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"a": []byte("hush"), "z": []byte("zz")}},
	}
	yes := ptr.To(true)
	all := func(prefix string, from v1.EnvFromSource) v1.EnvFromSource { from.Prefix = prefix; return from }
	fromConfigMap := func(name string, optional *bool) v1.EnvFromSource {
		return v1.EnvFromSource{ConfigMapRef: &v1.ConfigMapEnvSource{
			LocalObjectReference: v1.LocalObjectReference{Name: name},
			Optional:             optional,
		}}
	}
	fromSecret := func(name string, optional *bool) v1.EnvFromSource {
		return v1.EnvFromSource{SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: name}, Optional: optional}}
	}
	for _, c := range []struct {
		name string
		from []v1.EnvFromSource
		env  []v1.EnvVar
		want string
	}{
		{name: "nothing"},
		{name: "values and references", env: []v1.EnvVar{
			{Name: "A", Value: "1"},
			{Name: "B", Value: "$(A)2 $(C) $$(A)"},
			{Name: "C", Value: "3"},
			{Name: "D"},
		}, want: "A=1 B=12 $(C) $(A) C=3 D="},
		{
			name: "the last of a name counts", env: []v1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "x"}, {Name: "A", Value: "$(A)2"}},
			want: "A=12 B=x",
		},
		{
			name: "envFrom", from: []v1.EnvFromSource{fromConfigMap("cm", nil), all("S_", fromSecret("s", nil)), fromSecret("s", nil)},
			want: "a=hush b=2 S_a=hush S_z=zz z=zz",
		},
		{
			name: "env over envFrom", from: []v1.EnvFromSource{fromConfigMap("cm", nil)}, env: []v1.EnvVar{{Name: "a", Value: "$(a)$(b)"}},
			want: "a=12 b=2",
		},
		{name: "optional and missing", from: []v1.EnvFromSource{fromConfigMap("none", yes), fromSecret("none", yes)}, env: []v1.EnvVar{
			{Name: "A", ValueFrom: configKey("none", "x", yes)},
			{Name: "B", ValueFrom: secretKey("none", "x", yes)},
			{Name: "C", ValueFrom: configKey("cm", "x", yes)},
			{Name: "D", ValueFrom: secretKey("s", "x", yes)},
		}},
		{
			name: "keys", env: []v1.EnvVar{{Name: "A", ValueFrom: configKey("cm", "a", nil)}, {Name: "B", ValueFrom: secretKey("s", "a", nil)}},
			want: "A=1 B=hush",
		},
		{name: "no config map", env: []v1.EnvVar{{Name: "A", ValueFrom: configKey("none", "a", nil)}}, want: `error: configmap "none" not found`},
		{name: "no secret", from: []v1.EnvFromSource{fromSecret("none", nil)}, want: `error: secret "none" not found`},
		{
			name: "no key", env: []v1.EnvVar{{Name: "A", ValueFrom: configKey("cm", "x", nil)}},
			want: "error: couldn't find key x in ConfigMap ns/cm",
		},
		{
			name: "no secret key", env: []v1.EnvVar{{Name: "A", ValueFrom: secretKey("s", "x", nil)}},
			want: "error: couldn't find key x in Secret ns/s",
		},
		{name: "fields", env: []v1.EnvVar{
			{Name: "A", ValueFrom: field("metadata.name")},
			{Name: "B", ValueFrom: field("metadata.labels['app']")},
			{Name: "C", ValueFrom: field("spec.nodeName")},
			{Name: "D", ValueFrom: field("spec.serviceAccountName")},
			{Name: "E", ValueFrom: field("status.hostIP")},
			{Name: "F", ValueFrom: field("status.podIP")},
			{Name: "G", ValueFrom: field("status.podIPs")},
			{Name: "H", ValueFrom: field("status.hostIPs")},
			{Name: "I", ValueFrom: field("metadata.uid")},
		}, want: "A=p B=web C=n1 D=sa E=192.0.2.1 F=10.0.0.1 G=10.0.0.1,fd00::1 H=192.0.2.1 I=u1"},
		{
			name: "no such field", env: []v1.EnvVar{{Name: "A", ValueFrom: field("spec.hostname")}},
			want: "error: field label not supported: spec.hostname",
		},
		{name: "resources", env: []v1.EnvVar{
			{Name: "A", ValueFrom: limit("", "limits.memory", "1Mi")},
			{Name: "B", ValueFrom: limit("", "limits.cpu", "0")},
			{Name: "C", ValueFrom: limit("other", "limits.memory", "1Mi")},
			{Name: "D", ValueFrom: limit("", "requests.cpu", "1m")},
		}, want: "A=64 B=4 C=1024 D=0"},
		{
			name: "resources of nobody", env: []v1.EnvVar{{Name: "A", ValueFrom: limit("none", "limits.cpu", "1")}},
			want: "error: container none not found",
		},
		{
			name: "file", env: []v1.EnvVar{
				{Name: "A", ValueFrom: fileKey("dir/vars", "X", nil)},
				{Name: "B", ValueFrom: fileKey("dir/vars", "NONE", yes)},
				{Name: "C", ValueFrom: fileKey("inside", "X", nil)},
			},
			want: "A=from file C=from file",
		},
		{
			name: "file without the key", env: []v1.EnvVar{{Name: "A", ValueFrom: fileKey("dir/vars", "NONE", nil)}},
			want: `error: environment variable key "NONE" not found in file "dir/vars"`,
		},
		{name: "no file", env: []v1.EnvVar{{Name: "A", ValueFrom: fileKey("none", "X", nil)}}, want: "error: couldn't parse env file"},
		{
			name: "a link out of the volume", env: []v1.EnvVar{{Name: "A", ValueFrom: fileKey("outside", "X", nil)}},
			want: "error: couldn't parse env file",
		},
		{
			name: "a pipe instead of a file", env: []v1.EnvVar{{Name: "A", ValueFrom: fileKey("pipe", "X", nil)}},
			want: "error: couldn't parse env file",
		},
		{name: "an endless file", env: []v1.EnvVar{{Name: "A", ValueFrom: fileKey("huge", "X", nil)}}, want: "error: couldn't parse env file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newResolver(t, objects...)
			p := pod()
			p.Spec.Containers[0].Env, p.Spec.Containers[0].EnvFrom = c.env, c.from
			dir := layout.Dirs{Root: r.opts.RootDir}.EmptyDir(p.UID, "data")
			host := filepath.Join(t.TempDir(), "host")
			for _, err := range []error{
				os.MkdirAll(dir+"/dir", 0o700), os.WriteFile(dir+"/dir/vars", []byte("X='from file'\n"), 0o600),
				os.WriteFile(host, []byte("X='of the host'\n"), 0o600),
				os.Symlink(host, dir+"/outside"), os.Symlink("/dir/vars", dir+"/inside"), syscall.Mkfifo(dir+"/pipe", 0o600),
				os.WriteFile(dir+"/huge", nil, 0o600), os.Truncate(dir+"/huge", 1<<40),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			envs, _, _, err := r.Resolve(context.Background(), p, &p.Spec.Containers[0], []string{"fd00::1", "10.0.0.1", "10.0.0.2"},
				[]string{"192.0.2.1"})
			var words []string
			for _, e := range envs {
				words = append(words, e.Key+"="+string(e.Value))
			}
			got := strings.Join(words, " ")
			if err != nil {
				got = "error: " + err.Error()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestServices(t *testing.T) {
	r := newResolver(t, service("default", "kubernetes", "10.96.0.1"), service("ns", "my-db", "10.96.0.2"), service("ns", "headless", "None"),
		service("other", "x", "10.96.0.3"))
	for links, want := range map[bool]string{false: "10.96.0.1 $(MY_DB_SERVICE_HOST)", true: "10.96.0.1 10.96.0.2"} {
		p := pod()
		p.Spec.EnableServiceLinks = &links
		p.Spec.Containers[0].Env = []v1.EnvVar{
			{Name: "BOTH", Value: "$(KUBERNETES_SERVICE_HOST) $(MY_DB_SERVICE_HOST)"},
			{Name: "KUBERNETES_SERVICE_PORT", Value: "mine"},
		}
		p.Spec.Containers[0].Command = []string{"$(BOTH)", "$$(BOTH)"}
		p.Spec.Containers[0].Args = []string{"$(NONE)", "$(KUBERNETES_SERVICE_PORT_WEB)"}
		envs, command, args, err := r.Resolve(t.Context(), p, &p.Spec.Containers[0], nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, e := range envs {
			if _, twice := got[e.Key]; twice {
				t.Error(e.Key, "is set twice")
			}
			got[e.Key] = string(e.Value)
		}
		if got["BOTH"] != want || got["KUBERNETES_SERVICE_PORT"] != "mine" || got["KUBERNETES_PORT_80_TCP_ADDR"] != "10.96.0.1" {
			t.Error(links, got)
		}
		if _, linked := got["MY_DB_SERVICE_HOST"]; linked != links || got["X_SERVICE_HOST"] != "" || got["HEADLESS_SERVICE_HOST"] != "" {
			t.Error(links, got)
		}
		if strings.Join(command, "|") != want+"|$(BOTH)" || strings.Join(args, "|") != "$(NONE)|80" {
			t.Error(command, args)
		}
	}
}

func TestServicesMustBeKnown(t *testing.T) {
	kube := fake.NewClientset()
	r := New(&client.Set{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}, Options{})
	p := pod()
	if _, _, _, err := r.Resolve(t.Context(), p, &p.Spec.Containers[0], nil, nil); err == nil ||
		err.Error() != "services have not yet been read at least once, cannot construct envvars" {
		t.Error(err)
	}
	p.Annotations[staticSource] = "file"
	if _, _, _, err := r.Resolve(t.Context(), p, &p.Spec.Containers[0], nil, nil); err != nil {
		t.Error("a static pod waits for the API:", err)
	}
	p.Spec.EnableServiceLinks = nil
	if _, _, _, err := r.Resolve(t.Context(), p, &p.Spec.Containers[0], nil, nil); err == nil {
		t.Error("took a pod without enableServiceLinks")
	}
}
