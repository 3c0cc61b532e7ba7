// Fits a line by gradient descent: tensors, automatic differentiation and linear algebra must work.
#include <torch/torch.h>

#include <iostream>

int main() {
  torch::manual_seed(0);
  auto x = torch::linspace(-1, 1, 64).unsqueeze(1);
  auto y = 3 * x + 0.5;
  auto weight = torch::zeros({1, 1}, torch::requires_grad());
  auto bias = torch::zeros({1}, torch::requires_grad());
  for (int step = 0; step < 200; ++step) {
    auto loss = (torch::matmul(x, weight) + bias - y).pow(2).mean();
    loss.backward();
    torch::NoGradGuard still;
    for (auto parameter : {weight, bias}) {
      parameter.sub_(0.5 * parameter.grad());
      parameter.grad().zero_();
    }
  }
  const double slope = weight.item<double>(), height = bias.item<double>();
  std::cout << "y = " << slope << " x + " << height << std::endl;
  return std::abs(slope - 3) < 0.01 && std::abs(height - 0.5) < 0.01 ? 0 : 1;
}
