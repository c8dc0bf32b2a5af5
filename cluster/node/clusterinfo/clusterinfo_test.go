package clusterinfo

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"
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
	if err := Publish(ctx, kube, "https://192.0.2.1:6443", []byte("ca"), s); err != nil {
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

	// Signatures stay when the server moves: the signer replaces them.
	info.Data["jws-kubeconfig-abcdef"] = "signature"
	if _, err := public.Update(ctx, info, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := Publish(ctx, kube, "https://192.0.2.2:6443", []byte("ca"), s); err != nil {
		t.Fatal(err)
	}
	info, err = public.Get(ctx, "cluster-info", metav1.GetOptions{})
	if err != nil || info.Data["jws-kubeconfig-abcdef"] == "" || !strings.Contains(info.Data["kubeconfig"], "192.0.2.2") {
		t.Errorf("%v, %v", info.Data, err)
	}
}

func TestSettingsThatAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"of a later format": `{"version": 2}`, "of none": `{}`, "damaged": `{"version": 1`, "two": `{"version": 1}{"version": 1}`,
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
