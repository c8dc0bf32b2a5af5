package clusterinfo

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
)

func TestPublish(t *testing.T) {
	ctx, kube := t.Context(), fake.NewClientset()
	if _, there, err := ReadSettings(ctx, kube); there || err != nil {
		t.Errorf("settings before they were published: %t, %v", there, err)
	}
	if _, _, err := Published(ctx, kube); !errors.Is(err, ErrNone) {
		t.Errorf("cluster-info before it was published: %v", err)
	}
	s := Settings{
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		ClusterDomain: "cluster.local", NodeDNS: true, ServiceProxy: true,
	}
	if err := Publish(ctx, kube, "https://192.0.2.1:6443", []byte("ca"), []byte("ca and more"), s); err != nil {
		t.Fatal(err)
	}
	if server, ca, err := Published(ctx, kube); server != "https://192.0.2.1:6443" || string(ca) != "ca" || err != nil {
		t.Errorf("%s, %s, %v", server, ca, err)
	}
	public := kube.CoreV1().ConfigMaps("kube-public")
	info, err := public.Get(ctx, "cluster-info", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.Load([]byte(info.Data["kubeconfig"]))
	if err != nil || config.Clusters[""].Server != "https://192.0.2.1:6443" || len(config.AuthInfos) != 0 {
		t.Errorf("%+v, %v", config, err)
	}
	s.Version = settingsVersion
	if got, there, err := ReadSettings(ctx, kube); err != nil || !there || !reflect.DeepEqual(got, s) {
		t.Errorf("%+v, %t, %v", got, there, err)
	}
	encrypted := s
	encrypted.PodNetwork = EncryptedPodNetwork
	if err := Publish(ctx, kube, "https://192.0.2.1:6443", []byte("ca"), []byte("ca and more"), encrypted); err != nil {
		t.Fatal(err)
	}
	encrypted.Version = 2 // which agents that cannot encrypt refuse
	if got, _, err := ReadSettings(ctx, kube); err != nil || !reflect.DeepEqual(got, encrypted) {
		t.Errorf("with encryption: %+v, %v", got, err)
	}

	agents, err := kube.CoreV1().ConfigMaps("kube-system").Get(ctx, AgentConfigMap, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Authority(agents); err != nil || string(got) != "ca and more" {
		t.Errorf("agents follow %q, %v", got, err)
	}
	agents.Data[authorityKey] = strings.Repeat("x", longestAuthority+1)
	if _, err := Authority(agents); err == nil {
		t.Error("an authority that is too long is read")
	}

	// Signatures stay when the server moves: the signer replaces them.
	info.Data["jws-kubeconfig-abcdef"] = "signature"
	if _, err := public.Update(ctx, info, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := Publish(ctx, kube, "https://192.0.2.2:6443", []byte("ca"), []byte("ca and more"), s); err != nil {
		t.Fatal(err)
	}
	info, err = public.Get(ctx, "cluster-info", metav1.GetOptions{})
	if err != nil || info.Data["jws-kubeconfig-abcdef"] == "" || !strings.Contains(info.Data["kubeconfig"], "192.0.2.2") {
		t.Errorf("%v, %v", info.Data, err)
	}
}

func TestSettingsThatAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"of a later format": `{"version": 3}`, "of none": `{}`, "damaged": `{"version": 1`, "two": `{"version": 1}{"version": 1}`,
		"no networks": `{"version": 1, "serviceCIDRs": ["x"]}`, "too long": `{"version": 1, "clusterDomain": "` + strings.Repeat("x", 1<<17) + `"}`,
	} {
		kube := fake.NewClientset()
		if err := publish(t.Context(), kube, "kube-system", AgentConfigMap, settingsKey, text); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadSettings(t.Context(), kube); err == nil {
			t.Errorf("%s: it was read", name)
		}
	}
}

func TestReadKubelets(t *testing.T) {
	const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailSwapOn: false\n"
	for name, c := range map[string]struct {
		text    string
		want    Settings
		refused string
	}{
		"of kubeadm": {
			text: head + "clusterDNS:\n- 10.96.0.10\n- fd00::a\nclusterDomain: upstream.test\n",
			want: Settings{
				ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::a")}, ClusterDomain: "upstream.test",
			},
		},
		"without a DNS":  {text: head},
		"empty":          {},
		"no address":     {text: head + "clusterDNS: [dns.example]\n", refused: "cannot be read"},
		"no domain":      {text: head + "clusterDomain: ../x\n", refused: `clusterDomain "../x" is no domain`},
		"no YAML":        {text: "\t{", refused: "cannot be read"},
		"too long":       {text: head + "#" + strings.Repeat("x", longestSettings), refused: "bytes, and may have"},
		"too many":       {text: head + "clusterDNS: [" + strings.Repeat("10.0.0.1, ", 17) + "10.0.0.1]\n", refused: "has 18 addresses"},
		"another object": {text: "[]", refused: "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			kube := fake.NewClientset()
			if err := publish(t.Context(), kube, "kube-system", kubeletConfigMap, kubeletConfigKey, c.text); err != nil {
				t.Fatal(err)
			}
			got, err := ReadKubelets(t.Context(), kube)
			if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%v, want %q", err, c.refused)
			}
			if err == nil && !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
	if got, err := ReadKubelets(t.Context(), fake.NewClientset()); err != nil || !reflect.DeepEqual(got, Settings{}) {
		t.Errorf("of a control plane without any: %+v, %v", got, err)
	}
}

// Regression: where the controllers had just moved to another node, a new token was not known to
// the machine that used it at once.
func TestATokenIsSignedBeforeItIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: bootstrapapi.ConfigMapClusterInfo}}
		kube := fake.NewClientset(info)
		began := time.Now()
		time.AfterFunc(20*time.Second, func() {
			info := info.DeepCopy()
			info.Data = map[string]string{bootstrapapi.JWSSignatureKeyPrefix + "abcdef": "x"}
			if _, err := kube.CoreV1().ConfigMaps(info.Namespace).Update(t.Context(), info, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		})
		if err := AwaitSigned(t.Context(), kube, "abcdef"); err != nil || time.Since(began) < 20*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		err := AwaitSigned(t.Context(), kube, "other1")
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "no controllers run") || took < 20*time.Second+signLimit {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
