package nodelifecycle

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// withREST gives a fake client what upstream's controller writes its events with: a REST client,
// which in turn writes to the fake.
type withREST struct{ kubernetes.Interface }

func (w withREST) CoreV1() typedcorev1.CoreV1Interface { return coreV1{w.Interface.CoreV1()} }

type coreV1 struct{ typedcorev1.CoreV1Interface }

func (c coreV1) RESTClient() rest.Interface {
	gv := corev1.SchemeGroupVersion
	return must(rest.RESTClientForConfigAndClient(&rest.Config{
		Host: "http://test", APIPath: "/api", QPS: -1,
		ContentConfig: rest.ContentConfig{
			GroupVersion: &gv, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
			ContentType: "application/json",
		},
	}, &http.Client{Transport: eventWriter{c}}))
}

type eventWriter struct{ to typedcorev1.CoreV1Interface }

// RoundTrip answers as if it had written the event; a counted-up event is the same to the tests.
func (e eventWriter) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var event corev1.Event
	if r.Method == http.MethodPost {
		if err := json.Unmarshal(body, &event); err != nil {
			return nil, err
		}
		if _, err := e.to.Events(event.Namespace).Create(r.Context(), &event, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	return &http.Response{
		StatusCode: http.StatusCreated, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)),
	}, nil
}
