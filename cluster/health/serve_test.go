package health

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Regression: one part that says nothing kept from up what the others have said.
func TestHandlerWithASilentPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var board Board
		board.Add("DNS").Fails(errors.New("address in use"))
		board.Add("service proxy")
		asked, began := httptest.NewRecorder(), time.Now()
		Handler(&board).ServeHTTP(asked, httptest.NewRequest(http.MethodGet, Path+"?wait", nil))
		if said := asked.Body.String(); !strings.Contains(said, "address in use") || time.Since(began) != Patience {
			t.Errorf("after %v: %s", time.Since(began), said)
		}
	})
}
