// A program as its authors wrote them for Rambrain: its headers, macros and names, and nothing of nram.

#include <rambrain/managedPtr.h>
#include <rambrain/rambrainDefinitionsHeader.h>

#include <cmath>

class B {
 public:
  B() : data(1000) { ++alive; }
  B(double& a, double& b) : data(1000, a + b) { ++alive; }
  ~B() { --alive; }
  void someFunction() {
    ADHERETO(double, data);
    data[0] = 42.;
  }
  double first() const {
    ADHERETOCONST(double, data);
    return data[0];
  }
  managedPtr<double> data;
  static int alive;
};
int B::alive = 0;

adhereTo<double> glueOf(managedPtr<double>& pointer) { return adhereTo<double>(pointer, false); }

void initialise(managedPtr<double>* arr[], unsigned int x_max, unsigned int y_max) {
  for (unsigned int x = 0; x < x_max; ++x) {
    adhereTo<double> glue(arr[x]);
    double* line = glue;
    double xx = x / (double)x_max;
    for (unsigned int y = 0; y < y_max; ++y) line[y] = sin(xx + y / (double)y_max);
  }
}

int checkRows() {
  const unsigned int x_max = 300, y_max = 2000;
  managedPtr<double>* arr[x_max];
  for (unsigned int x = 0; x < x_max; ++x) arr[x] = new managedPtr<double>(y_max);
  initialise(arr, x_max, y_max);
  int wrong = 0;
  for (unsigned int x = 0; x < x_max; ++x) {
    const adhereTo<double> glue(*arr[x]);
    const double* line = glue;
    if (line[7] != sin(x / (double)x_max + 7 / (double)y_max)) ++wrong;
  }
  for (unsigned int x = 0; x < x_max; ++x) delete arr[x];
  return wrong;
}

int checkClasses() {
  double a = 1, b = 2;
  int wrong = 0;
  {
    managedPtr<B> b1;
    managedPtr<B> b2(1, a, b);
    managedPtr<B> b3(5, a, b);
    managedPtr<B> copy = b2;
    ADHERETOLOC(B, b3, all);
    all[4].someFunction();
    wrong += all[4].first() != 42. || all[3].first() != 3.;
    ADHERETOLOCCONST(B, copy, same);
    wrong += same->first() != 3. || B::alive != 7;
  }
  return wrong + (B::alive != 0);
}

int main() {
  rambrainglobals::config.resizeMemory(2 << 20);
  rambrainglobals::config.resizeSwap(1 << 30);
  rambrainglobals::config.reinit();
  managedMemory::defaultManager->setOutOfSwapIsFatal(false);
  managedMemory::defaultManager->setMemoryLimit(1 << 20);

  managedPtr<double> a1;
  managedPtr<double> a2(5);
  managedPtr<double> a3(5, 1.);
  managedPtr<double, 2> a4(5, 5, 0);
  int wrong = checkRows() + checkClasses();

  double *c5, *c6;
  adhereTo<double> c5_glue(a2), c6_glue(a3);
  {
    LISTOFINGREDIENTS
    c5 = c5_glue;
    c6 = c6_glue;
  }
  wrong += c5[4] != 0. || c6[4] != 1. || a3.size() != 5;
  adhereTo<double> lateGlue = glueOf(a4[2]);
  double* late = lateGlue;
  wrong += late[3] != 0.;

  try {
    managedPtr<double> tooMuch(1 << 20);
    ++wrong;
  } catch (memoryException& e) {
    cout << "as expected: " << e.what() << endl;
  }
  managedMemory::defaultManager->printSwapstats();
  if (managedMemory::defaultManager->getUsedMemory() > (1 << 20)) ++wrong;
  if (wrong != 0) cout << wrong << " wrong" << endl;
  return wrong != 0;
}
